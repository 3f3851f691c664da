"""Text generated with a program's cache: what was read once is not read again.

Letters: C positions of the cache, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from prgec.core.contract.arrays import FloatArray
from prgec.core.contract.engine import GeneratingProgram
from prgec.core.contract.names import EXTEND_CHUNK
from prgec.errors import ProgramError, UsageError
from prgec.runtime.training.sampling import Sampler

# A decoder writes this for bytes that are not a whole character yet.
_UNFINISHED = "\ufffd"


class Reader:
    """The cache of a program.

    Args:
        program: Compiled with --context.

    Raises:
        UsageError: If it was not.
    """

    def __init__(self, program: GeneratingProgram) -> None:
        if not program.manifest.context:
            raise UsageError("the program has no cache to continue with", hint="compile it with --generate --context C")
        self._program = program
        self._held: list[int] = []
        self.context = program.manifest.context

    def forget(self) -> None:
        """Read everything again: the trained weights have changed."""
        self._held = []

    def read(self, ids: Sequence[int]) -> FloatArray:
        """Return the logits f32[V] after a text; only the tokens after its common prefix with the last text are read.

        Raises:
            UsageError: If the text is empty or longer than C.
            ProgramError: If the logits are not finite.
        """
        if not ids:
            raise UsageError("there is no text to continue")
        if len(ids) > self.context:
            raise UsageError(
                f"the text has {len(ids)} tokens, and the program's cache holds {self.context}",
                hint="compile it with a larger --context",
            )
        shared = next((n for n, pair in enumerate(zip(self._held, ids, strict=False)) if pair[0] != pair[1]), None)
        # Logits come from a token that is read.
        start = min(len(self._held) if shared is None else shared, len(ids) - 1)
        if start == 0:
            self._program.cache.clear()
        self._held = self._held[:start]
        for first in range(start, len(ids), EXTEND_CHUNK):
            part = ids[first : min(first + EXTEND_CHUNK, len(ids))]
            logits_V = self._program.cache.extend(np.array(part, dtype=np.int64), first)
            self._held += part
        if np.isnan(logits_V).any():
            self.forget()
        return finite(logits_V)


def finite(logits_V: FloatArray) -> FloatArray:
    """Return logits as they are.

    Raises:
        ProgramError: If they are not finite.
    """
    if np.isnan(logits_V).any():
        raise ProgramError(
            "the program computes values that are not finite: its trained weights are too large",
            hint="take an earlier adapter",
        )
    return logits_V


class Answer:
    """An answer while it is written: iterating over it gives its text in parts.

    Args:
        reader: Reader of the program.
        prompt: Ids to answer.
        sampler: Chooses tokens.
        decode: Ids to text, without special tokens.
        ends: Tokens that end an answer.
        max_tokens: Most tokens of it.
        stops: Texts that end it, themselves left out.

    Attributes:
        ids: Its tokens so far.
        text: The part of it given so far.
        is_full: Whether it ended because the cache was full.
    """

    def __init__(
        self,
        reader: Reader,
        prompt: Sequence[int],
        sampler: Sampler,
        decode: Callable[[Sequence[int]], str],
        *,
        ends: Sequence[int],
        max_tokens: int,
        stops: Sequence[str] = (),
    ) -> None:
        self._reader, self._prompt, self._sampler, self._decode = reader, list(prompt), sampler, decode
        self._ends, self._max_tokens, self._stops = frozenset(ends), max_tokens, tuple(filter(None, stops))
        self.ids: list[int] = []
        self.text = ""
        self.is_full = False

    def __iter__(self) -> Iterator[str]:
        """Write it.

        Raises:
            UsageError: If the prompt does not fit the cache.
        """
        while len(self.ids) < self._max_tokens:
            if self.ids and len(self._prompt) + len(self.ids) > self._reader.context:
                self.is_full = True
                break
            token = self._sampler.choose(self._reader.read([*self._prompt, *self.ids]))
            if token in self._ends:
                break
            self.ids.append(token)
            text = self._decode(self.ids)
            place = min((found for stop in self._stops if (found := text.find(stop)) >= 0), default=-1)
            if place >= 0:
                yield from self._give(text[:place])
                return
            yield from self._give(text[: len(text) - self._held_back(text)])
        yield from self._give(self._decode(self.ids))

    def _give(self, text: str) -> Iterator[str]:
        """The part of the text that was not given yet."""
        if len(text) > len(self.text):
            part, self.text = text[len(self.text) :], text
            yield part

    def _held_back(self, text: str) -> int:
        """Characters at the end that may turn out otherwise: part of a stop, or of a character."""
        starts = (n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
        return max((len(text) - len(text.rstrip(_UNFINISHED)), *starts), default=0)

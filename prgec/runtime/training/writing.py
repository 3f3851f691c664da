"""Answers to several prompts, written side by side where a program can: rows that end make room for the next prompt.

Letters: R texts that a program continues at once, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from prgec.core.contract.arrays import FloatArray
from prgec.core.contract.engine import GeneratingProgram
from prgec.core.contract.listener import CallListener, ignore
from prgec.runtime.training.reader import Reader, finite
from prgec.runtime.training.sampling import Sampler


@dataclass
class OpenText:
    """A prompt and its answer so far.

    Attributes:
        prompt: Ids to answer.
        sampler: Chooses tokens.
        ids: Tokens of the answer, with the one that ends it.
    """

    prompt: Sequence[int]
    sampler: Sampler
    ids: list[int] = field(default_factory=list)


class AnswerWriter:
    """Writes answers with a program's cache, under one state of its trained weights.

    A token depends on its own text, the state and the sampler alone: neither on R nor on the texts beside it.

    Args:
        program: Compiled with --context.
        max_tokens: Most tokens of an answer.
        has_ended: Whether an answer is whole.

    Raises:
        UsageError: If the program has no cache.
    """

    def __init__(
        self, program: GeneratingProgram, *, max_tokens: int, has_ended: Callable[[Sequence[int]], bool]
    ) -> None:
        self._program, self._reader = program, Reader(program)
        self._max_tokens, self._has_ended = max_tokens, has_ended
        # Logits after the last prompt: several answers to one follow each other.
        self._last: tuple[Sequence[int], FloatArray] | None = None

    def write(self, texts: Sequence[OpenText], on_call: CallListener = ignore) -> None:
        """Write the answer of every text.

        Args:
            texts: Prompts; their answers are written to.
            on_call: Called with (texts ended, all texts) after every call; it may raise to end the rest.

        Raises:
            UsageError: If a prompt does not fit the cache.
            ProgramError: If the program computes values that are not finite.
        """
        waiting = iter(texts)
        # By row: the text that is written there.
        open_ones: dict[int, OpenText] = {}
        free = list(range(max(1, self._program.manifest.rollouts)))
        num_ended = 0
        while True:
            while free and (text := next(waiting, None)) is not None:
                self._take(text, self._after_prompt(text.prompt))
                if self._is_whole(text):
                    num_ended += 1
                else:
                    row = free.pop()
                    open_ones[row] = text
                    self._enter(row, text)
                on_call(num_ended, len(texts))
            if not open_ones:
                return
            for row, logits_V in self._continue(open_ones):
                text = open_ones[row]
                self._take(text, logits_V)
                if self._is_whole(text):
                    num_ended += 1
                    free.append(row)
                    del open_ones[row]
            on_call(num_ended, len(texts))

    def _after_prompt(self, prompt: Sequence[int]) -> FloatArray:
        if self._last is None or self._last[0] != prompt or not self._program.manifest.rollouts:
            self._last = prompt, self._reader.read(prompt)
        return self._last[1]

    def _take(self, text: OpenText, logits_V: FloatArray) -> None:
        text.ids.append(text.sampler.choose(logits_V))

    def _is_whole(self, text: OpenText) -> bool:
        is_full = len(text.prompt) + len(text.ids) > self._reader.context
        return is_full or len(text.ids) >= self._max_tokens or self._has_ended(text.ids)

    def _enter(self, row: int, text: OpenText) -> None:
        if self._program.manifest.rollouts:
            self._program.cache.fork(row, len(text.prompt))

    def _continue(self, texts: dict[int, OpenText]) -> list[tuple[int, FloatArray]]:
        """Read the last token of each open text; return the logits f32[V] after it by row."""
        rows = self._program.manifest.rollouts
        if not rows:
            return [(row, self._reader.read([*text.prompt, *text.ids])) for row, text in texts.items()]
        # Rows without a text read token 0 at their beginning, which the next text's prompt overwrites.
        tokens_R, starts_R = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        for row, text in texts.items():
            tokens_R[row] = text.ids[-1]
            starts_R[row] = len(text.prompt) + len(text.ids) - 1
        logits_RV = self._program.cache.decode(tokens_R, starts_R)
        return [(row, finite(logits_RV[row])) for row in sorted(texts)]

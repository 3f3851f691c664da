"""Greedy generation of many answers, with a program's cache where it has one, else with its `next_tokens` method.

That method has no cache: every new token costs one forward over the whole prompt, shared by as many different
prompts as one evaluation call holds (N, or B with a shared prefix). Answering M questions with up to n tokens each
takes at most n * ceil(M / N) calls; questions that have ended drop out.

Letters: N rows of a forward call.
"""

from __future__ import annotations

from collections.abc import Sequence

from prgec.core.contract.engine import GeneratingProgram
from prgec.core.contract.listener import CallListener, ignore
from prgec.core.data.batches import evaluation_batches
from prgec.core.data.cut import cut_prompt
from prgec.core.data.encode import Row
from prgec.errors import UsageError
from prgec.runtime.training.sampling import Sampler, Sampling
from prgec.runtime.training.writing import AnswerWriter, OpenText

DEFAULT_MAX_TOKENS = 32
# Answers of one line: what follows a line break is another text.
LINE_END = "\n"


def generate(
    program: GeneratingProgram,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    stop: str | None = None,
    on_call: CallListener = ignore,
) -> list[str]:
    """Continue every prompt with its most likely tokens.

    Args:
        program: A program compiled with --generate.
        prompts: Ids; those longer than T, or the cache, less `max_tokens` lose tokens on their left.
        max_tokens: Most tokens to add.
        stop: Text at which an answer ends, itself left out; EOS and the end of a turn always end it.
        on_call: Called with (prompts ended, all prompts) after every call; it may raise to end the rest.

    Returns:
        The continuations as text.

    Raises:
        UsageError: If the program has no `next_tokens`, or `max_tokens` leaves no room for a prompt.
    """
    manifest = program.manifest
    if not manifest.generate:
        raise UsageError("the program cannot generate", hint="compile it with --generate")
    room = manifest.context or manifest.seq_len
    if not 1 <= max_tokens < room:
        name = "--context" if manifest.context else "T"
        raise UsageError(f"cannot generate {max_tokens} tokens with {name} = {room}")
    texts = [cut_prompt(list(prompt), room - max_tokens + 1, program.tokenizer.bos_id) for prompt in prompts]
    if manifest.context:
        return _with_cache(program, texts, max_tokens, stop, on_call)
    lengths = [len(text) for text in texts]
    open_ones = list(range(len(texts)))
    for _ in range(max_tokens):
        for index, token in _next(program, texts, open_ones, on_call):
            texts[index].append(token)
        open_ones = [i for i in open_ones if not _has_ended(program, texts[i][lengths[i] :], stop)]
        on_call(len(texts) - len(open_ones), len(texts))
        if not open_ones:
            break
    return [text_of(program, text[length:], stop) for text, length in zip(texts, lengths, strict=True)]


def _with_cache(
    program: GeneratingProgram, prompts: list[list[int]], max_tokens: int, stop: str | None, on_call: CallListener
) -> list[str]:
    """Continue as many texts at once as the program can."""
    texts = [OpenText(prompt, Sampler(Sampling())) for prompt in prompts]
    answer_writer(program, max_tokens=max_tokens, stop=stop).write(texts, on_call)
    return [text_of(program, text.ids, stop) for text in texts]


def answer_writer(program: GeneratingProgram, *, max_tokens: int, stop: str | None = None) -> AnswerWriter:
    """Return a writer of answers with a program's cache; EOS, the end of a turn and a text at which to stop end them.

    Raises:
        UsageError: If the program has no cache.
    """
    return AnswerWriter(program, max_tokens=max_tokens, has_ended=lambda new: _has_ended(program, new, stop))


def _next(
    program: GeneratingProgram, texts: list[list[int]], chosen: list[int], on_call: CallListener
) -> list[tuple[int, int]]:
    """Return the next token of each chosen text."""
    rows = [Row(tuple(texts[i]), (len(texts[i]) - 1,), (0,)) for i in chosen]
    found: list[tuple[int, int]] = []
    for batch in evaluation_batches(rows, program.manifest):
        tokens = program.next_tokens(batch)[: len(batch.indices), 0]
        found += [(chosen[row], int(token)) for row, token in zip(batch.indices.tolist(), tokens, strict=True)]
        on_call(len(texts) - len(chosen), len(texts))
    return found


def _has_ended(program: GeneratingProgram, new: Sequence[int], stop: str | None) -> bool:
    if new[-1] in program.tokenizer.end_ids:
        return True
    return stop is not None and stop in program.tokenizer.decode(new).lstrip()


def text_of(program: GeneratingProgram, new: Sequence[int], stop: str | None = None) -> str:
    """Return the text of an answer, without what ends it."""
    text = program.tokenizer.decode([token for token in new if token not in program.tokenizer.end_ids])
    return text.strip() if stop is None else text.lstrip().split(stop, 1)[0].strip()

"""One way to generate, measured in this process: `python -m tests.checks.chat_ways JOB` prints its speed as JSON.

Letters: V vocabulary.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from prgec.core.contract.names import EXTEND_CHUNK

# Maps ids at positions from `start` on, after those read before, to the most likely next one.
Read: TypeAlias = Callable[[Sequence[int], int], int]

# Tokens of a warm-up before the clock starts.
_WARM_UP_TOKENS = 4
_SEED = 3


@dataclass(frozen=True)
class Job:
    """The measurement of one process.

    Attributes:
        way: `prgec`, `transformers` or `llama.cpp`.
        path: A program, a checkpoint folder, or a .gguf.
        threads: To compute with.
        vocab_size: V.
        prompt: Tokens to read.
        tokens: Tokens to write after them, one after the other.
        repeats: Times to do both.
    """

    way: str
    path: str
    threads: int
    vocab_size: int
    prompt: int
    tokens: int
    repeats: int


def measure(job: Job) -> dict[str, Any]:
    """Tokens a second of both parts, medians over the repeats, and the tokens written."""
    read = _WAYS[job.way](job)
    ids = [int(each) for each in np.random.default_rng(_SEED).integers(3, job.vocab_size, job.prompt)]
    _write(read, read(ids, 0), len(ids), _WARM_UP_TOKENS)
    prefill, decode, written = [], [], []
    for _ in range(job.repeats):
        started = time.perf_counter()
        first = read(ids, 0)
        middle = time.perf_counter()
        written = _write(read, first, len(ids), job.tokens)
        ended = time.perf_counter()
        prefill.append(job.prompt / (middle - started))
        decode.append(job.tokens / (ended - middle))
    return {"prefill": statistics.median(prefill), "decode": statistics.median(decode), "written": written}


def _write(read: Read, token: int, start: int, count: int) -> list[int]:
    written = []
    for place in range(start, start + count):
        token = read([token], place)
        written.append(token)
    return written


def _prgec(job: Job) -> Read:
    from prgec.runtime.engines.executorch.open import open_pte

    if job.threads != os.cpu_count():
        # The bindings bring PyTorch, whose memory counts here; the runtime takes all cores by itself.
        import torch  # noqa: F401
        from executorch.extension.pybindings import _C as bindings

        bindings._unsafe_reset_threadpool(job.threads)
    program = open_pte(Path(job.path), verify=False)

    def read(ids: Sequence[int], start: int) -> int:
        for first in range(0, len(ids), EXTEND_CHUNK):
            part = np.array(ids[first : first + EXTEND_CHUNK], dtype=np.int64)
            logits_V = program.cache.extend(part, start + first)
        return int(logits_V.argmax())

    return read


def _transformers(job: Job) -> Read:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(job.threads)
    model = AutoModelForCausalLM.from_pretrained(job.path, dtype=torch.float32)
    cache = None

    @torch.inference_mode()
    def read(ids: Sequence[int], start: int) -> int:
        nonlocal cache
        cache = cache if start else DynamicCache(config=model.config)
        # As generate does: logits of the last position alone.
        found = model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        return int(found.logits[0, -1].argmax())

    return read


def _llama_cpp(job: Job) -> Read:
    import llama_cpp

    room = job.prompt + job.tokens + _WARM_UP_TOKENS
    model = llama_cpp.Llama(
        job.path,
        n_ctx=room,
        n_batch=max(job.prompt, 32),
        n_ubatch=max(job.prompt, 32),
        n_threads=job.threads,
        n_threads_batch=job.threads,
        verbose=False,
    )

    def read(ids: Sequence[int], start: int) -> int:
        model.n_tokens = start
        # This drops the positions from `start` on.
        model.eval(ids)
        found = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        return int(np.ctypeslib.as_array(found, shape=(job.vocab_size,)).argmax())

    return read


_WAYS: dict[str, Callable[[Job], Read]] = {"prgec": _prgec, "transformers": _transformers, "llama.cpp": _llama_cpp}


def to_json(job: Job) -> str:
    """The input of the process."""
    return json.dumps(asdict(job))


if __name__ == "__main__":
    print(json.dumps(measure(Job(**json.loads(sys.argv[1])))))

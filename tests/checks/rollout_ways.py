"""One way to write several answers to a prompt, measured in this process: `python -m tests.checks.rollout_ways JOB`.

Letters: R texts, V vocabulary.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_SEED = 3


@dataclass(frozen=True)
class RolloutJob:
    """The measurement of one process.

    Attributes:
        way: `prgec`, `transformers` or `llama.cpp`.
        path: A program, a checkpoint folder, or a .gguf.
        rows: R.
        threads: To compute with.
        vocab_size: V.
        prompt: Tokens to read, once.
        tokens: Tokens of each answer.
        repeats: Times to do both.
    """

    way: str
    path: str
    rows: int
    threads: int
    vocab_size: int
    prompt: int
    tokens: int
    repeats: int


class Engine(Protocol):
    """A model that continues one prompt R times."""

    def begin(self, ids: Sequence[int]) -> None:
        """Read the prompt, for all texts."""

    def decode(self, tokens_R: NDArray[np.int64], place: int) -> NDArray[np.int64]:
        """Read one token of each text at a position; return the most likely next ones."""


def measure(job: RolloutJob) -> dict[str, Any]:
    """Tokens a second of all texts together, the median over the repeats; the texts begin with different tokens."""
    engine = _WAYS[job.way](job)
    ids = [int(each) for each in np.random.default_rng(_SEED).integers(3, job.vocab_size, job.prompt)]
    first_R = np.random.default_rng(_SEED + 1).integers(3, job.vocab_size, job.rows)
    rates = []
    for _ in range(job.repeats + 1):
        engine.begin(ids)
        tokens_R, started = first_R, time.perf_counter()
        for place in range(job.prompt, job.prompt + job.tokens):
            tokens_R = engine.decode(tokens_R, place)
        rates.append(job.rows * job.tokens / (time.perf_counter() - started))
    return {"rate": statistics.median(rates[1:]), "last": tokens_R.tolist()}


class _Prgec:
    def __init__(self, job: RolloutJob) -> None:
        from prgec.runtime.engines.executorch.open import open_pte

        self._program, self._rows = open_pte(Path(job.path), verify=False), job.rows

    def begin(self, ids: Sequence[int]) -> None:
        self._program.cache.clear()
        self._program.cache.extend(np.array(ids, dtype=np.int64), 0)
        if self._rows > 1:
            for row in range(self._rows):
                self._program.cache.fork(row, len(ids))

    def decode(self, tokens_R: NDArray[np.int64], place: int) -> NDArray[np.int64]:
        if self._rows == 1:
            return np.array([self._program.cache.extend(tokens_R, place).argmax()])
        logits_RV = self._program.cache.decode(tokens_R, np.full(self._rows, place, dtype=np.int64))
        found: NDArray[np.int64] = logits_RV.argmax(1)
        return found


class _Transformers:
    def __init__(self, job: RolloutJob) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(job.threads)
        torch.set_grad_enabled(False)
        self._rows = job.rows
        self._model = AutoModelForCausalLM.from_pretrained(job.path, dtype=torch.float32)
        self._cache: Any = None

    def begin(self, ids: Sequence[int]) -> None:
        import torch
        from transformers import DynamicCache

        self._cache = DynamicCache(config=self._model.config)
        self._model(input_ids=torch.tensor([ids] * self._rows), past_key_values=self._cache, use_cache=True)

    def decode(self, tokens_R: NDArray[np.int64], place: int) -> NDArray[np.int64]:
        import torch

        found = self._model(
            input_ids=torch.from_numpy(tokens_R)[:, None], past_key_values=self._cache, use_cache=True
        ).logits[:, -1]
        chosen: NDArray[np.int64] = found.argmax(-1).numpy()
        return chosen


class _LlamaCpp:
    def __init__(self, job: RolloutJob) -> None:
        import llama_cpp

        self._api, self._rows, self._vocab_size = llama_cpp, job.rows, job.vocab_size
        llama_cpp.llama_backend_init()
        # Without this every load of a model writes pages of text.
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, None)
        model = llama_cpp.llama_model_load_from_file(job.path.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = job.prompt + job.rows * (job.tokens + 1) + 64
        params.n_batch = params.n_ubatch = max(job.prompt, job.rows)
        params.n_seq_max = job.rows
        params.n_threads = params.n_threads_batch = job.threads
        # One buffer for all texts: they share the prompt.
        params.kv_unified = True
        self._context = llama_cpp.llama_init_from_model(model, params)
        self._batch = llama_cpp.llama_batch_init(max(job.prompt, job.rows), 0, 1)

    def _run(self, entries: Sequence[tuple[int, int, int, bool]]) -> None:
        self._batch.n_tokens = len(entries)
        for i, (token, place, text, is_wanted) in enumerate(entries):
            self._batch.token[i], self._batch.pos[i] = token, place
            self._batch.n_seq_id[i], self._batch.seq_id[i][0] = 1, text
            self._batch.logits[i] = is_wanted
        assert self._api.llama_decode(self._context, self._batch) == 0

    def begin(self, ids: Sequence[int]) -> None:
        memory = self._api.llama_get_memory(self._context)
        self._api.llama_memory_clear(memory, True)
        self._run([(token, place, 0, place == len(ids) - 1) for place, token in enumerate(ids)])
        for text in range(1, self._rows):
            self._api.llama_memory_seq_cp(memory, 0, text, -1, -1)

    def decode(self, tokens_R: NDArray[np.int64], place: int) -> NDArray[np.int64]:
        self._run([(int(token), place, text, True) for text, token in enumerate(tokens_R)])
        found = (self._api.llama_get_logits_ith(self._context, text) for text in range(self._rows))
        return np.array([np.ctypeslib.as_array(each, shape=(self._vocab_size,)).argmax() for each in found])


_WAYS: dict[str, Callable[[RolloutJob], Engine]] = {
    "prgec": _Prgec,
    "transformers": _Transformers,
    "llama.cpp": _LlamaCpp,
}


def to_json(job: RolloutJob) -> str:
    """Return the input of the process."""
    return json.dumps(asdict(job))


if __name__ == "__main__":
    print(json.dumps(measure(RolloutJob(**json.loads(sys.argv[1])))))

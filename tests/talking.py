"""A small program with a cache, and what it should say: shared by tests of talking."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prgec.compiler.options import CompileOptions
from prgec.runtime.training.reader import Answer, Reader
from prgec.runtime.training.sampling import Sampler, Sampling
from tests.architectures import architecture
from tests.models import VOCAB_SIZE

CONTEXT = 40
# Grouped queries, soft caps, and a window of five in every other layer.
NAME = "Gemma 2"
TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"


def write_checkpoint(folder: Path, name: str = NAME) -> Path:
    architecture(name).write(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    return folder


def chat_options(checkpoint: Path, **changes: Any) -> CompileOptions:
    given: dict[str, Any] = {
        "model": str(checkpoint),
        "output": Path("model.pte"),
        "method": "exact",
        "batch_size": 2,
        "seq_len": 16,
        "num_labels": 2,
        "rank": 4,
        "alpha": 8.0,
        "generate": True,
        "context": CONTEXT,
    }
    return CompileOptions(**{**given, **changes})


def greedy(program: Any, ids: Sequence[int], count: int) -> list[int]:
    answer = Answer(Reader(program), ids, Sampler(Sampling()), lambda ids: "", ends=(), max_tokens=count)
    assert list(answer) == []
    return answer.ids


def transformers_greedy(model: Any, ids: Sequence[int], count: int) -> list[int]:
    text = torch.tensor([ids])
    lengths = {"max_new_tokens": count, "min_new_tokens": count}
    # Without a mask it leaves out of a prompt what ends a chat's messages: that token pads, too.
    whole = model.generate(text, attention_mask=torch.ones_like(text), **lengths, do_sample=False, eos_token_id=None)
    return [int(token) for token in whole[0, len(ids) :]]


def text_of(length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(3, VOCAB_SIZE, length)]


def give_state(program: Any) -> None:
    """Give the program a B that matters."""
    random = np.random.default_rng(5)
    state = {name: random.normal(0, 0.2, b.shape).astype(np.float32) for name, b in program.read_state().items()}
    program.write_state(state)

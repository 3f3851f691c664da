"""Exports of a trained program give the same answers in other tools: greedy tokens of transformers and llama.cpp.

With `PRGEC_SMOLLM2` naming the folder that tools/make_smollm2.py writes, also of a model that talks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from prgec.cli.main import main
from prgec.core.formats.adapter import load_adapter
from prgec.runtime.engines.executorch.open import open_pte
from tests.gguf_model import write_gguf_llama
from tests.models import TinyLlama
from tests.talking import greedy, transformers_greedy

pytestmark = pytest.mark.slow

SMOLLM2 = "PRGEC_SMOLLM2"
CONTEXT, NEW = 64, 24
QUESTIONS = ("What is the capital of France?", "Tell me about the sea.", "the film was great")


@dataclass(frozen=True)
class Run:
    """A run, and how its program continues some texts greedily."""

    base: Path
    folder: Path
    prompts: list[list[int]]
    untrained: list[list[int]]
    trained: list[list[int]]


@pytest.fixture(scope="module", params=["tiny", "SmolLM2"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("elsewhere")
    if request.param == "tiny":
        base, rate = TinyLlama(num_layers=2, seed=6).write(folder / "base"), "0.1"
    elif SMOLLM2 in os.environ:
        base, rate = Path(os.environ[SMOLLM2]), "0.1"
    else:
        pytest.skip(f"{SMOLLM2} is not set")
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps({"sentence": f"the film {i}", "label": i % 2}) + "\n" for i in range(8)))
    sizes = ["--method", "prge", "--q", "2", "--batch-size", "2", "--rank", "4", "--alpha", "8", "--layers", "last:2"]
    program = folder / "model.pte"
    assert _main("compile", base, "--data", data, *sizes, "--generate", "--context", CONTEXT, "-o", program) == 0
    out = folder / "run"
    assert _main("run", program, "--data", data, "--steps", 12, "--lr", rate, "--out", out) == 0
    loaded = open_pte(program)
    prompts = [_prompt(loaded, text) for text in QUESTIONS]
    untrained = [greedy(loaded, prompt, NEW) for prompt in prompts]
    load_adapter(out / "adapter.safetensors", loaded)
    trained = [greedy(loaded, prompt, NEW) for prompt in prompts]
    assert trained != untrained, "the adapter matters"
    return Run(base, out, prompts, untrained, trained)


def _main(*words: object) -> int:
    return main([*map(str, words)])


def _prompt(program: Any, text: str) -> list[int]:
    if program.tokenizer.chat_template is None:
        return program.tokenizer.encode(text)[: CONTEXT - NEW]
    return program.tokenizer.encode_chat_prompt([{"role": "user", "content": text}])[: CONTEXT - NEW]


def _transformers(folder: Path, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return [transformers_greedy(model, ids, NEW) for ids in prompts]


def _llama_cpp(path: Path, lora: Path | None, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    llama_cpp: Any = pytest.importorskip("llama_cpp")

    # Keys and values of f16, as it has them by itself, would round.
    whole = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32, "flash_attn": False}
    model = llama_cpp.Llama(
        str(path), lora_path=lora and str(lora), n_ctx=CONTEXT, verbose=False, logits_all=True, **whole
    )
    answers = []
    for prompt in prompts:
        model.reset()
        ids = list(prompt)
        model.eval(ids)
        while len(ids) < len(prompt) + NEW:
            ids.append(int(np.argmax(model.scores[len(ids) - 1])))
            model.eval(ids[-1:])
        answers.append(ids[len(prompt) :])
    model.close()
    return answers


def _export(run: Run, kind: str, output: Path) -> Path:
    assert _main("export", run.folder, "--format", kind, "--base", run.base, "-o", output) == 0
    return output


def test_transformers_says_the_same_of_the_checkpoint(run: Run) -> None:
    assert _transformers(run.base, run.prompts) == run.untrained


def test_transformers_says_the_same_of_the_merged_one(run: Run, tmp_path: Path) -> None:
    assert _transformers(_export(run, "merged", tmp_path / "merged"), run.prompts) == run.trained


def test_llama_cpp_says_the_same_with_the_adapter(run: Run, tmp_path: Path) -> None:
    base = tmp_path / "base.gguf"
    write_gguf_llama(base, AutoModelForCausalLM.from_pretrained(run.base, dtype=torch.float32))
    assert _llama_cpp(base, None, run.prompts) == run.untrained
    assert _llama_cpp(base, _export(run, "gguf-lora", tmp_path / "lora.gguf"), run.prompts) == run.trained

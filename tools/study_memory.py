"""Measure the memory a training step adds to the weights, for first order, MeZO and P-RGE: the shape of Table 3.

    python tools/study_memory.py                  # prints a Markdown table (minutes)
    python tools/study_memory.py --width 1024     # a larger random model

Each number comes from a process of its own: the most anonymous memory it held during three steps, by the kernel's own
mark, less what it held before the first one, when the model was loaded. Source of the comparison: papers, P-RGE, Table
3 and figure 7.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from demo.tokenizer import train_tokenizer
from study.words import KINDS
from transformers import LlamaConfig, LlamaForCausalLM

from prgec.core.contract.calls import StepInputs
from prgec.core.data.batches import training_batch
from prgec.core.data.encode import Row
from prgec.core.machine.memory import Growth
from prgec.lab.study.method import build_method

SEQ_LENS, BATCH_SIZES = (64, 256), (1, 16)
STEPS = 3
# At equal rows a step: B is what one query sees, and P-RGE divides it among its queries.
METHODS: dict[str, dict[str, Any]] = {
    "FO-Adam (full)": {"kind": "fo", "space": "full", "optimizer": "adam"},
    "FO-Adam (LoRA-FA)": {"kind": "fo", "space": "lora-fa", "optimizer": "adam"},
    "FO-SGD (LoRA-FA)": {"kind": "fo", "space": "lora-fa", "optimizer": "sgd"},
    "MeZO (full)": {"kind": "mezo", "space": "full"},
    "MeZO (LoRA-FA)": {"kind": "mezo", "space": "lora-fa"},
    "P-RGE, q = 1": {"kind": "prge", "q": 1},
    "P-RGE, q = 4": {"kind": "prge", "q": 4},
}


def main() -> None:
    """Measure every method at every size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256, help="width of the random Llama (8 layers)")
    parser.add_argument("--only", choices=METHODS, action="append", help="measure this method (repeatable)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = _random_model(Path(folder), options.width)
        sizes = [(seq_len, rows) for seq_len in SEQ_LENS for rows in BATCH_SIZES]
        print("| MB above the weights |", " | ".join(f"T={t}, E={rows}" for t, rows in sizes), "|")
        print("|" + "---|" * (len(sizes) + 1))
        for name in options.only or METHODS:
            method = METHODS[name]
            cells = [_measure(model, method, seq_len, rows) for seq_len, rows in sizes]
            print(f"| {name} |", " | ".join(cells), "|", flush=True)


def _measure(model: str, method: dict[str, Any], seq_len: int, rows: int) -> str:
    queries = method.get("q", 1)
    if rows % queries:
        return "-"
    # Forked: libraries are imported once, and what a measurement allocates dies with it.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_steps, args=(model, method, seq_len, rows // queries, sender))
    child.start()
    child.join()
    if child.exitcode or not receiver.poll():
        raise SystemExit(f"{method} at T={seq_len}, E={rows} failed")
    return f"{receiver.recv() / 1e6:.0f}"


def _steps(model: str, method: dict[str, Any], seq_len: int, batch_size: int, sender: Any) -> None:
    options, queries = {**method, "batch_size": batch_size}, method.get("q", 1)
    if method["kind"] == "prge":
        options |= {"seq_len": seq_len, "num_labels": 1}
    trained = build_method(model, options, 0, Path(__file__))
    tokens = np.random.default_rng(0).integers(3, 250, (batch_size, seq_len)).tolist()
    rows = [Row(tuple(each), (seq_len - 1,), (5,)) for each in tokens]
    batch = training_batch(rows, np.arange(batch_size), trained.program.manifest)
    # Weights are read from their file when they are used first.
    trained.program.forward(batch, StepInputs(g_q=np.zeros(queries, np.float32), lr=0.0, eps=1e-3, seed=0, step=1))
    growth = Growth()
    for _ in range(STEPS):
        trained.step(batch, 1e-6)
    growth.pause()
    sender.send(growth.bytes)


def _random_model(folder: Path, width: int) -> str:
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    train_tokenizer([f"A {word} is a {kind}." for kind, words in KINDS.items() for word in words], folder, 512)
    return str(folder)


if __name__ == "__main__":
    main()

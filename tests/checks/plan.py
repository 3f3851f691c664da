"""The plan beside what is measured: `python tools/plan.py` compiles programs of many kinds and writes a table.

None of the figures of the plan was fitted on these programs: other widths, families, activations and methods. Each is
measured in a process of its own that runs a few steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.compiler.plan.memory import Memory, memory_of
from prgec.compiler.plan.shape import shape_of_config
from prgec.compiler.plan.workload import Workload
from prgec.core.contract.names import LAYERS
from prgec.lab.bench.job import Job
from prgec.lab.bench.memory import measure
from prgec.lab.bench.options import Cell
from prgec.lab.bench.variants import VARIANTS
from tests.models import write_tokenizer

_VARIANT = {"prge": "prgec", "exact": "exact", "shortcut": "shortcut"}
_PARTS = ("weights", "state", "activations", "tables")
_HEADER = ("model", "method", "scheme", "step", "T", "measured MB", "planned MB", "off", *_PARTS)
_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


@dataclass(frozen=True)
class Program:
    """One program to plan and to measure.

    Attributes:
        name: Name of the row.
        config: Fields of the model's config.json, `model_type` among them.
        work: How it trains.
    """

    name: str
    config: dict[str, Any]
    work: Workload


def decoder(
    model_type: str, width: int, layers: int, inner: int, heads: int, kv_heads: int, **rest: Any
) -> dict[str, Any]:
    """Configuration of a decoder whose family speaks Llama's words."""
    return {
        "model_type": model_type,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": 4096,
        "max_position_embeddings": 512,
        **_SPECIAL,
        **rest,
    }


def opt(width: int, layers: int) -> dict[str, Any]:
    """Configuration of an OPT."""
    words = {"ffn_dim": 4 * width, "word_embed_proj_dim": width, "activation_function": "relu"}
    return {**decoder("opt", width, layers, 4 * width, 8, 8), **words}


def gpt2(width: int, layers: int) -> dict[str, Any]:
    """Configuration of a GPT-2."""
    sizes = {"n_embd": width, "n_layer": layers, "n_head": 8, "n_positions": 512, "vocab_size": 4096}
    return {"model_type": "gpt2", **sizes, **_SPECIAL}


# Few weights and many rows: a program of few operations compiles quickly, and what it holds is mostly its own.
_LLAMA = decoder("llama", 320, 3, 864, 10, 5)
_LARGER = decoder("llama", 640, 6, 1728, 10, 5)
_NEOX = decoder("gpt_neox", 256, 3, 1024, 8, 8, rotary_pct=0.25)
_GEMMA = decoder("gemma3_text", 256, 3, 768, 4, 2, head_dim=96, sliding_window=64)
_DEEPER_GEMMA = decoder("gemma3_text", 256, 12, 768, 4, 2, head_dim=96, sliding_window=64)
_QWEN3 = decoder("qwen3", 256, 3, 768, 8, 2, head_dim=64)
PROGRAMS = (
    Program("Llama", _LLAMA, Workload("prge", q=4, batch_size=8, seq_len=192)),
    Program("Llama", _LLAMA, Workload("exact", batch_size=16, seq_len=192)),
    Program("OPT", opt(320, 3), Workload("prge", "8da8w", q=4, batch_size=8, seq_len=160)),
    Program("Gemma 3", _GEMMA, Workload("prge", q=4, batch_size=6, seq_len=160)),
    Program("Gemma 3", _GEMMA, Workload("exact", "8da4w", batch_size=16, seq_len=128)),
    Program("GPT-NeoX", _NEOX, Workload("prge", q=4, batch_size=8, seq_len=160)),
    Program("GPT-NeoX", _NEOX, Workload("exact", batch_size=16, seq_len=128)),
    Program("GPT-2", gpt2(256, 3), Workload("exact", batch_size=24, seq_len=128, optimizer="momentum")),
    Program("Qwen3", _QWEN3, Workload("exact", "8da8w", batch_size=12, seq_len=256)),
    Program("Qwen3", _QWEN3, Workload("shortcut", "8da4w", batch_size=32, seq_len=128)),
    Program("Gemma 3", _GEMMA, Workload("shortcut", batch_size=32, seq_len=128)),
    Program("Llama, last 1", _LLAMA, Workload("prge", "none", "last:1", 4, 6, 256, prefix="shared")),
    Program("Llama, AdamW", _LLAMA, Workload("shortcut", batch_size=32, seq_len=128, optimizer="adamw")),
    Program("Llama, 6 x 640", _LARGER, Workload("prge", q=2, batch_size=4, seq_len=128)),
    Program("Llama, 6 x 640", _LARGER, Workload("exact", batch_size=8, seq_len=128)),
    Program("Llama, 6 x 640, AdamW", _LARGER, Workload("shortcut", batch_size=16, seq_len=128, optimizer="adamw")),
    Program("Llama, 8 x 768", decoder("llama", 768, 8, 2048, 12, 4), Workload("shortcut", batch_size=4, seq_len=128)),
    Program(
        "Llama, 8 x 768, last 4",
        decoder("llama", 768, 8, 2048, 12, 4),
        Workload("exact", layers="last:4", batch_size=4, seq_len=128),
    ),
    Program("Llama, 2 x 768", decoder("llama", 768, 2, 2048, 12, 4), Workload("exact", batch_size=4, seq_len=128)),
    Program("Llama, 6 x 640, layers", _LARGER, Workload("exact", batch_size=8, seq_len=128, recompute=LAYERS)),
    Program("Gemma 3, layers", _GEMMA, Workload("exact", "8da4w", batch_size=16, seq_len=128, recompute=LAYERS)),
    Program("Gemma 3, 12 blocks", _DEEPER_GEMMA, Workload("exact", batch_size=8, seq_len=128)),
)


@dataclass(frozen=True)
class Measured:
    """A program, planned and measured.

    Attributes:
        program: The program.
        planned: Its parts.
        anon_bytes: The largest anonymous memory of a process that ran a few steps.
    """

    program: Program
    planned: Memory
    anon_bytes: int

    @property
    def error(self) -> float:
        """Share by which the plan is too high, or below zero too low."""
        return self.planned.total / self.anon_bytes - 1.0


def measure_program(each: Program, folder: Path) -> Measured:
    """Write a random checkpoint, compile it, and watch a process that trains it."""
    path = folder / f"{PROGRAMS.index(each) if each in PROGRAMS else each.name}.pte"
    if not path.exists():
        compile_program(each, path)
    work = each.work
    cell = Cell(work.quantize, work.q, work.batch_size, work.seq_len)
    job = Job(
        variant=VARIANTS[_VARIANT[work.method]],
        cell=cell,
        backend="xnnpack",
        model=each.name,
        vocab_size=each.config["vocab_size"],
        num_labels=work.num_labels,
        layers=(work.layers,),
        program=path,
    )
    shape = shape_of_config(each.config, each.name)
    return Measured(each, memory_of(shape, work, driver="bench"), measure(job).anon_bytes)


def compile_program(each: Program, path: Path) -> None:
    """Compile a random model of the program's shape."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from prgec.compiler.compile import compile_model
    from prgec.compiler.options import CompileOptions

    work = each.work
    fields = {key: value for key, value in each.config.items() if key != "model_type"}
    with tempfile.TemporaryDirectory() as checkpoint:
        config = AutoConfig.for_model(each.config["model_type"], **fields)
        AutoModelForCausalLM.from_config(config).save_pretrained(checkpoint)
        write_tokenizer(Path(checkpoint), "json")
        compile_model(
            CompileOptions(
                model=checkpoint,
                output=path,
                method=work.method,
                optimizer=work.optimizer,
                q=work.q,
                batch_size=work.batch_size,
                seq_len=work.seq_len,
                num_labels=work.num_labels,
                layers=(work.layers,),
                quantize=work.quantize,
                rank=work.rank,
                recompute=work.recompute,
            )
        )


def to_markdown(found: list[Measured]) -> str:
    """A table, worst and mean error below it."""
    lines = [f"| {' | '.join(_HEADER)} |", "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for each in found:
        work, parts = each.program.work, each.planned
        step = f"q={work.q} B={work.batch_size}" if work.method == "prge" else f"B={work.batch_size}"
        sizes = (each.anon_bytes, parts.total)
        rest = (parts.weights, parts.state, parts.activations, parts.tables)
        cells = [each.program.name, work.method, work.quantize, step, str(work.seq_len)]
        cells += [f"{size / 1e6:.1f}" for size in sizes]
        cells += [f"{each.error:+.1%}", *(f"{size / 1e6:.1f}" for size in rest)]
        lines.append(f"| {' | '.join(cells)} |")
    errors = [abs(each.error) for each in found]
    lines += ["", f"Largest difference {max(errors):.1%}, mean {sum(errors) / len(errors):.1%}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="plan.py", description=__doc__)
    parser.add_argument("--programs", type=Path, help="folder that keeps the programs for the next time")
    parser.add_argument("--only", help="numbers of programs between commas, from 0")
    parser.add_argument("--json", type=Path, help="also write what was measured to this file")
    options = parser.parse_args()
    chosen = [PROGRAMS[int(each)] for each in options.only.split(",")] if options.only else list(PROGRAMS)
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.programs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for each in chosen:
            found.append(measure_program(each, folder))
            print(f"{each.name} {each.work.method}: {found[-1].error:+.1%}", file=sys.stderr)
            if options.json is not None:
                rows = [{"name": one.program.name, "anon": one.anon_bytes, **one.planned.to_json()} for one in found]
                options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(to_markdown(found), end="")


if __name__ == "__main__":
    main()

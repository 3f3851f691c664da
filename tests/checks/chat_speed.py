"""How fast programs with a cache talk, beside transformers in f32 and llama.cpp: `python tools/chat_speed.py --help`.

Every figure is of a process of its own that reads a prompt of random tokens and continues it with the most likely ones.
Processes of one model take turns. Anonymous memory is sampled every 10 ms from outside, since a device must have it;
pages of mapped files are in the resident memory alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prgec.core.machine.describe import describe_machine
from prgec.runtime.engines.executorch.runtime import manifest_of
from tests.checks.chat_ways import Job, to_json
from tests.checks.measured_process import run_measured
from tests.gguf_model import quantize_gguf, write_gguf_llama

_EQUAL_BITS = "Q4_0"
_GGUF_KINDS = (_EQUAL_BITS, "Q8_0")
_HEADER = ("", "weights", "file MB", "prefill", "decode", "of transformers", f"of {_EQUAL_BITS}", "anon MB", "RSS MB")


@dataclass
class Way:
    """One row of a table.

    Attributes:
        job: Measurement of its processes.
        weights: How they are stored, in words.
        found: Output of each process, with its memory.
    """

    job: Job
    weights: str
    found: list[dict[str, Any]] = field(default_factory=list)

    def median(self, name: str) -> float:
        """Median over all processes."""
        return statistics.median(each[name] for each in self.found)


def ways_of(programs: Sequence[Path], checkpoint: Path, work: Path, options: argparse.Namespace) -> list[Way]:
    """The ways compared for one model."""
    last = options.prompt + options.tokens
    manifests = [manifest_of(program) for program in programs]
    for program, manifest in zip(programs, manifests, strict=True):
        if last > manifest.context:
            raise SystemExit(f"{program} holds {manifest.context} positions; --prompt and --tokens need {last}")

    def job(way: str, path: Path) -> Job:
        vocab_size = manifests[0].vocab_size
        return Job(way, str(path), options.threads, vocab_size, options.prompt, options.tokens, options.repeats)

    ours = [f"{each.quantize}, C = {each.context}" for each in manifests]
    if len(programs) > 1:
        ours = [f"{text}, {program.name}" for text, program in zip(ours, programs, strict=True)]
    ways = [Way(job("prgec", program), text) for program, text in zip(programs, ours, strict=True)]
    ways.append(Way(job("transformers", checkpoint), "f32"))
    return ways + [Way(job("llama.cpp", path), kind) for kind, path in _gguf_files(checkpoint, work)]


def _gguf_files(checkpoint: Path, work: Path) -> Iterator[tuple[str, Path]]:
    """The checkpoint for llama.cpp, where that is installed: every matrix in the same bits."""
    if not _version("llama-cpp-python"):
        return
    from transformers import AutoModelForCausalLM

    whole = work / "f32.gguf"
    write_gguf_llama(whole, AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32"))
    for kind in _GGUF_KINDS:
        quantize_gguf(whole, work / f"{kind}.gguf", kind)
        yield kind, work / f"{kind}.gguf"
    whole.unlink()


def run(way: Way) -> None:
    """Measure once, in a process of its own."""
    threads = {"OMP_NUM_THREADS": str(way.job.threads)}
    said, peak = run_measured(["-m", "tests.checks.chat_ways", to_json(way.job)], threads)
    way.found.append({**json.loads(said.splitlines()[-1]), "anon": peak.anon_bytes, "rss": peak.rss_bytes})


def table(ways: Sequence[Way]) -> str:
    """Tokens a second, and MB of 10^6 bytes."""
    decode = {(each.job.way, each.weights): each.median("decode") for each in ways}
    lines = [f"| {' | '.join(_HEADER)} |", "|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for each in ways:
        speed = each.median("decode")
        ratios = [
            f"{speed / decode[other]:.2f}" if other in decode else "-"
            for other in (("transformers", "f32"), ("llama.cpp", _EQUAL_BITS))
        ]
        sizes = [f"{each.median(name) / 1e6:.0f}" for name in ("anon", "rss")]
        cells = [each.job.way, each.weights, f"{_bytes_of(Path(each.job.path)) / 1e6:.0f}"]
        cells += [f"{each.median('prefill'):.0f}", f"{speed:.1f}", *ratios, *sizes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _bytes_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(each.stat().st_size for each in path.glob("*.safetensors"))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def report(tables: dict[str, str], options: argparse.Namespace) -> str:
    """The page, with the command that writes it."""
    machine = describe_machine()
    versions = {**machine["versions"], "llama-cpp-python": _version("llama-cpp-python") or "not installed"}
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        "# How fast a program talks",
        "",
        f"    python tools/chat_speed.py {shlex.join(sys.argv[1:])}",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {options.threads} threads.",
        f"{said}.",
        "",
        f"Each process reads {options.prompt} random tokens and writes {options.tokens} behind them, greedily, "
        f"{options.repeats} times;",
        f"tokens a second are medians of {options.rounds} processes' medians, which took turns. Memory is a process's",
        "peak, interpreter and libraries included. llama.cpp has every matrix in the bits its row names (`--pure`); in",
        "8da4w layers and head have 4 bits in groups of 32 and a scale of 16 bits, which is what Q4_0 stores.",
    ]
    for name, text in tables.items():
        lines += ["", f"## {name}", "", text.rstrip()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="chat_speed.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--of",
        nargs=3,
        action="append",
        required=True,
        metavar=("NAME", "PROGRAM[,PROGRAM]", "CHECKPOINT"),
        help="programs of a checkpoint; repeat it",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of every way [all cores]")
    parser.add_argument("--prompt", type=int, default=128, help="tokens to read [128]")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to write [64]")
    parser.add_argument("--repeats", type=int, default=3, help="times a process does both [3]")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each way [3]")
    parser.add_argument("--out", type=Path, help="also write the page to this file")
    options = parser.parse_args()
    tables = {}
    for name, programs, checkpoint in options.of:
        with tempfile.TemporaryDirectory() as work:
            ways = ways_of([Path(each) for each in programs.split(",")], Path(checkpoint), Path(work), options)
            for _ in range(options.rounds):
                for way in ways:
                    run(way)
            tables[name] = table(ways)
    page = report(tables, options)
    if options.out is not None:
        options.out.write_text(page, encoding="utf-8")
    print(page, end="")


if __name__ == "__main__":
    main()

"""How fast a program writes R answers at once, beside llama.cpp and transformers: `python tools/rollout_speed.py`.

Every figure is of a process of its own; those of one R take turns. Anonymous memory is sampled from outside.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shlex
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prgec.core.machine.describe import describe_machine
from prgec.runtime.engines.executorch.runtime import manifest_of
from tests.checks.measured_process import run_measured
from tests.checks.rollout_ways import RolloutJob, to_json
from tests.gguf_model import quantize_gguf, write_gguf_llama

_KIND = "Q4_0"
_HEADER = ("R", "prgec", "of one", "MB", "llama.cpp", "of one", "MB", "transformers", "of one", "prgec of llama.cpp")
_WAYS = ("prgec", "llama.cpp", "transformers")


def jobs_of(options: argparse.Namespace, work: Path) -> dict[tuple[str, int], RolloutJob]:
    """Return the measurements, by way and R."""
    programs = {max(1, manifest_of(each).rollouts): each for each in options.programs}
    vocab_size = manifest_of(options.programs[0]).vocab_size
    paths: dict[str, Path] = {"transformers": options.checkpoint}
    if _version("llama-cpp-python"):
        from transformers import AutoModelForCausalLM

        whole = work / "f32.gguf"
        write_gguf_llama(whole, AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype="float32"))
        quantize_gguf(whole, work / f"{_KIND}.gguf", _KIND)
        whole.unlink()
        paths["llama.cpp"] = work / f"{_KIND}.gguf"
    return {
        (way, rows): RolloutJob(
            way, str(path), rows, options.threads, vocab_size, options.prompt, options.tokens, options.repeats
        )
        for rows, program in sorted(programs.items())
        for way, path in {"prgec": program, **paths}.items()
    }


def run(job: RolloutJob) -> dict[str, Any]:
    """Measure once, in a process of its own."""
    threads = {"OMP_NUM_THREADS": str(job.threads)}
    said, peak = run_measured(["-m", "tests.checks.rollout_ways", to_json(job)], threads)
    return {**json.loads(said.splitlines()[-1]), "anon": peak.anon_bytes}


def table(found: dict[tuple[str, int], list[dict[str, Any]]]) -> str:
    """Return tokens a second by R, and MB of 10^6 bytes."""

    def median(way: str, rows: int, name: str = "rate") -> float:
        runs = found.get((way, rows))
        return statistics.median(each[name] for each in runs) if runs else float("nan")

    lines = [f"| {' | '.join(_HEADER)} |", f"|{'---:|' * len(_HEADER)}"]
    for rows in sorted({rows for _, rows in found}):
        cells = [str(rows)]
        for way in _WAYS:
            rate = median(way, rows)
            cells += [f"{rate:.1f}", f"{rate / median(way, 1):.2f}"]
            cells += [] if way == "transformers" else [f"{median(way, rows, 'anon') / 1e6:.0f}"]
        cells.append(f"{median('prgec', rows) / median('llama.cpp', rows):.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).replace("nan", "-")


def report(text: str, options: argparse.Namespace) -> str:
    """Return the page, with the command that writes it."""
    machine = describe_machine()
    versions = {**machine["versions"], "llama-cpp-python": _version("llama-cpp-python") or "not installed"}
    manifest = manifest_of(options.programs[0])
    command = shlex.join([options.checkpoint.name, *(each.name for each in options.programs)])
    return f"""# Answers written side by side

    python tools/rollout_speed.py {command}

{machine["cpu"]}, {machine["cores"]} cores, {options.threads} threads.
{", ".join(f"{name} {version}" for name, version in versions.items())}.

{manifest.model}, {manifest.quantize}, {len(manifest.sites)} trained layers of rank {manifest.rank}.
A process reads {options.prompt} random tokens once and continues them R times by {options.tokens} tokens each,
greedily, from different first ones, {options.repeats} times. Tokens a second are of all R together, medians of
{options.rounds} processes' medians, which took turns. MB are anonymous memory at its peak. llama.cpp has every matrix
in {_KIND} and no adapter, and its texts share the prompt; transformers has f32 and no adapter.

{text}
{_built()}"""


def _built() -> str:
    """Return what llama.cpp was compiled for, in its own words."""
    if not _version("llama-cpp-python"):
        return ""
    import llama_cpp

    return f"\nllama.cpp: {llama_cpp.llama_print_system_info().decode()}\n"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rollout_speed.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="the checkpoint of the programs")
    parser.add_argument("programs", type=Path, nargs="+", help="programs that differ in --rollouts alone")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of every way [all cores]")
    parser.add_argument("--prompt", type=int, default=64, help="tokens to read [64]")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an answer [32]")
    parser.add_argument("--repeats", type=int, default=3, help="times a process does both [3]")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each way [3]")
    parser.add_argument("--out", type=Path, help="also write the page to this file")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure and print."""
    options = _parsed()
    with tempfile.TemporaryDirectory() as work:
        jobs = jobs_of(options, Path(work))
        found: dict[tuple[str, int], list[dict[str, Any]]] = {key: [] for key in jobs}
        for _ in range(options.rounds):
            for key, job in jobs.items():
                found[key].append(run(job))
    page = report(table(found), options)
    if options.out is not None:
        options.out.write_text(page, encoding="utf-8")
    print(page, end="")


if __name__ == "__main__":
    main()

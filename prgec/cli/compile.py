"""`prgec compile`: a checkpoint in, a .pte that trains itself out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prgec.backends import details_of
from prgec.cli.compile_display import CompileDisplay
from prgec.cli.interrupt import end_on_terminate
from prgec.cli.options import FILE, SectionedCommand, options_of
from prgec.cli.render import print_json, print_lines
from prgec.cli.task_option import TASK
from prgec.compiler.cached import compile_cached
from prgec.compiler.check import check_options
from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.options import QUANTIZE_SCHEMES, SCHEMES_BY_BITS, compile_table
from prgec.compiler.options_from import options_from
from prgec.device.emit import check_driver_folder
from prgec.device.emit import emit_driver as write_driver

if TYPE_CHECKING:
    from prgec.compiler.result import CompileResult

_MOST_OPS = 8


class _Scheme(click.Choice[str]):
    """A scheme by its name, or by the bits of a weight."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value) if str(value) in SCHEMES_BY_BITS else super().convert(value, param, ctx)


_COMMON = (
    *("method", "batch_size", "recompute", "data", "generate", "context", "layers", "rank"),
    *("quantize", "backend", "memory", "output", "force"),
)
_KINDS: dict[str, click.ParamType[Any]] = {"task": TASK, "quantize": _Scheme(QUANTIZE_SCHEMES)}


@click.command("compile", cls=SectionedCommand, common=_COMMON)
@options_of(compile_table(), kinds=_KINDS)
@click.option("--emit-driver", type=FILE, metavar="DIR", help="Also write the C++ driver, a CMake project, to DIR.")
@click.option("--no-cache", is_flag=True, help="Compile even what was compiled before, and keep no copy.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def compile_command(emit_driver: Path | None, no_cache: bool, as_json: bool, **said: Any) -> int:
    """Compile MODEL, a Hugging Face checkpoint, into a .pte that trains itself.

    MODEL is a folder, an alias such as tinyllama, a hub id, or `demo` for the bundled model.
    """
    options = options_from(said)
    check_options(options)
    if emit_driver is not None:
        check_driver_folder(emit_driver)
    # A mistyped name is reported before seconds of imports.
    find_checkpoint(options.model)
    with end_on_terminate(), CompileDisplay() as display:
        result = compile_cached(options, display, use_cache=not no_cache)
    if emit_driver is not None:
        write_driver(emit_driver)
    if as_json:
        print_json(_to_json(result))
    else:
        print_lines(*_summary(result), *([f"{emit_driver}  C++ driver"] if emit_driver else []))
    return 0


def _summary(result: CompileResult) -> list[str]:
    m, report = result.manifest, result.delegation
    seconds = sum(result.seconds.values())
    slowest = max(result.seconds, key=lambda stage: result.seconds[stage])
    calls = sum(op.count for op in report.cpu_ops)
    lines = [
        f"{m.model} ({m.architecture}): {_count(len(m.sites), 'trained layer')}, "
        f"{m.step_text} T={m.seq_len} K={m.num_labels} state={m.state}",
        f"{m.backend}: {_count(len(report.delegates), 'delegate')} with "
        f"{_count(sum(d.ops for d in report.delegates), 'op')}; {_count(calls, 'op')} outside:",
    ]
    lines[1:1] = details_of(m)
    by_reason: dict[str, list[str]] = {}
    for op in report.cpu_ops:
        by_reason.setdefault(op.reason, []).append(f"{op.op} x{op.count}" if op.count > 1 else op.op)
    lines += [f"  {reason}: {_shortened(ops)}" for reason, ops in by_reason.items()]
    refused = [f"  {refusal}" for record in result.passes for refusal in record.refusals]
    if refused:
        lines += ["left as they were:", *refused[:_MOST_OPS]]
    if len(refused) > _MOST_OPS:
        lines.append(f"  and {len(refused) - _MOST_OPS} more")
    took = f"{seconds:.0f} s ({slowest} {result.seconds[slowest]:.0f} s)"
    is_encoder = m.architecture.endswith("ForSequenceClassification")
    if not m.generate and not m.emits and not is_encoder:
        lines.append("it writes no text: compile with --generate --context C to chat with it")
    elif not m.context and not m.emits and not is_encoder:
        lines.append("it does not chat: compile with --context C for that")
    how = f"copied from the cache; it was compiled in {took}" if result.is_copy else f"in {took}"
    return [*lines, f"{result.path}  {result.file_bytes / 1e6:.1f} MB {how}"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _shortened(ops: list[str]) -> str:
    return ", ".join(ops[:_MOST_OPS]) + (f" and {len(ops) - _MOST_OPS} more" if len(ops) > _MOST_OPS else "")


def _to_json(result: CompileResult) -> dict[str, Any]:
    from prgec.core.contract.inspection import inspect_program

    return {
        "output": str(result.path),
        "is_copy": result.is_copy,
        "seconds": {stage: round(value, 3) for stage, value in result.seconds.items()},
        "passes": [
            {
                "pass": r.text,
                "changed": r.changed,
                "hits": r.hits,
                "refusals": [str(x) for x in r.refusals],
                "op_diff": {op: list(pair) for op, pair in r.op_diff.items()},
            }
            for r in result.passes
        ],
        **inspect_program(result.path).to_json(),
    }

"""`prgec compile`: a checkpoint in, a .pte that trains itself out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prgec.backends import BACKENDS, all_settings, details_of
from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.cli.task_option import TASK, TASK_HELP
from prgec.compile.options import DTYPES, EMBEDDING_BITS, PREFIX_CHOICES, QUANTIZE_SCHEMES, RNG_CHOICES, CompileOptions
from prgec.contract.names import STATE_MODES
from prgec.device.emit import check_driver_folder
from prgec.device.emit import emit_driver as write_driver
from prgec.frontend.checkpoint import find_checkpoint

if TYPE_CHECKING:
    from prgec.compile.compiler import CompileResult

FILE = click.Path(path_type=Path)
_DEFAULTS = CompileOptions(model="", output=Path("model.pte"))
_STAGES = {
    "load": "reading the checkpoint",
    "export": "tracing the model",
    "passes": "rewriting the graph",
    "lower": "lowering",
    "write": "writing",
}
_MOST_OPS = 8


def _settings_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add what single backends let a user choose."""
    for _, setting in reversed(all_settings()):
        command = click.option(f"--{setting.name}", metavar=setting.metavar, help=setting.help)(command)
    return command


@click.command("compile")
@click.argument("model")
@click.option("-o", "--output", type=FILE, default=_DEFAULTS.output, show_default=True, help="File to write.")
@click.option(
    "--backend",
    type=click.Choice(list(BACKENDS)),
    default=_DEFAULTS.backend,
    show_default=True,
    help="Runtime that executes the program.",
)
@_settings_options
@click.option("--q", type=int, default=_DEFAULTS.q, show_default=True, help="Queries (random directions) a step.")
@click.option("--batch-size", type=int, default=_DEFAULTS.batch_size, show_default=True, help="Examples a step.")
@click.option(
    "--seq-len", type=int, help=f"Most tokens a row may have [default: what --data needs, else {_DEFAULTS.seq_len}]."
)
@click.option(
    "--label-tokens",
    "num_labels",
    type=int,
    help=f"Most tokens a completion may have [default: what --data needs, else {_DEFAULTS.num_labels}].",
)
@click.option("--data", type=FILE, multiple=True, help="Rows the program must hold; repeat for more files.")
@click.option("--task", type=TASK, default=_DEFAULTS.task, show_default=True, help=TASK_HELP)
@click.option(
    "--generate",
    is_flag=True,
    help="Add the method that generates text, for F1 of answers and prgec predict --generate.",
)
@click.option(
    "--targets",
    default=",".join(_DEFAULTS.targets),
    show_default=True,
    help="Layers to train: names (q_proj,v_proj), regular expressions, or all-linear.",
)
@click.option(
    "--layers",
    default=",".join(_DEFAULTS.layers),
    show_default=True,
    help="Blocks to train: all, last:K, or indices and ranges such as 0,4-7.",
)
@click.option(
    "--prefix",
    type=click.Choice(PREFIX_CHOICES),
    default=_DEFAULTS.prefix,
    show_default=True,
    help="Blocks before the first trained one: with all rows (none), once per example (shared), or as a "
    "method whose results prgec run can keep (method). auto shares where --layers leaves any.",
)
@click.option("--rank", type=int, default=_DEFAULTS.rank, show_default=True, help="LoRA rank.")
@click.option("--alpha", type=float, default=_DEFAULTS.alpha, show_default=True, help="LoRA alpha.")
@click.option("--a-seed", type=int, default=_DEFAULTS.a_seed, show_default=True, help="Seed of the frozen A matrices.")
@click.option(
    "--lora-a",
    type=FILE,
    metavar="DIR",
    help="Take A, layers, rank and alpha from this PEFT adapter, so that prgec run --init-adapter can go on from it.",
)
@click.option(
    "--state",
    type=click.Choice(STATE_MODES),
    default=_DEFAULTS.state,
    show_default=True,
    help="One master copy of B, or the paper's 2q copies.",
)
@click.option(
    "--quantize",
    type=click.Choice(QUANTIZE_SCHEMES),
    default=_DEFAULTS.quantize,
    show_default=True,
    help="Frozen layers: int8 activations with int8 (8da8w) or grouped int4 (8da4w) weights; narrow weights "
    "alone on HTPs (w8a16, w4a16) and GPUs (int8, int4).",
)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    default=_DEFAULTS.dtype,
    show_default=True,
    help="What frozen layers multiply in; auto is f32, and 16 bits for GPUs and HTPs.",
)
@click.option(
    "--group-size",
    type=int,
    default=_DEFAULTS.group_size,
    show_default=True,
    help="Inputs that share a scale in 4-bit weights and in the embedding.",
)
@click.option(
    "--quantize-embedding",
    type=click.Choice(EMBEDDING_BITS),
    default=_DEFAULTS.quantize_embedding,
    show_default=True,
    help="Bits of the embedding table; 0 keeps f32.",
)
@click.option(
    "--rng",
    type=click.Choice(RNG_CHOICES),
    default=_DEFAULTS.rng,
    show_default=True,
    help="Noise from the prge kernels, or plain arithmetic for runtimes without them.",
)
@click.option("--static", is_flag=True, help="Fix T at --seq-len even where the backend could vary it.")
@click.option("--passes", help="Pipeline text that replaces the default one.")
@click.option("--dump-passes", type=FILE, metavar="DIR", help="Write the graph after each pass to DIR.")
@click.option("--save-program", type=FILE, metavar="FILE", help="Save the traced graph as .pt2 for prgec opt.")
@click.option("--emit-driver", type=FILE, metavar="DIR", help="Also write the C++ driver, a CMake project, to DIR.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def compile_command(
    targets: str,
    layers: str,
    seq_len: int | None,
    num_labels: int | None,
    data: tuple[Path, ...],
    emit_driver: Path | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Compile MODEL, a Hugging Face checkpoint, into a .pte that trains itself.

    MODEL is a folder, an alias such as tinyllama, a hub id, or `demo` for the bundled model.
    """
    if seq_len is None:
        seq_len = 0 if data else _DEFAULTS.seq_len
    if num_labels is None:
        num_labels = 0 if data else _DEFAULTS.num_labels
    settings = {each.name: flags.pop(each.name) for _, each in all_settings()}
    options = CompileOptions(
        targets=_split(targets),
        layers=_split(layers),
        seq_len=seq_len,
        num_labels=num_labels,
        data=data,
        settings={name: value for name, value in settings.items() if value is not None},
        **flags,
    )
    options.check()
    if emit_driver is not None:
        check_driver_folder(emit_driver)
    # A mistyped name is told before seconds of imports.
    find_checkpoint(options.model)
    with stderr_console().status("starting") as status:
        from prgec.compile.compiler import compile_model

        result = compile_model(options, lambda stage: status.update(_STAGES[stage]))
    if emit_driver is not None:
        write_driver(emit_driver)
    if as_json:
        print_json(_to_json(result))
    else:
        print_lines(*_summary(result), *([f"{emit_driver}  C++ driver"] if emit_driver else []))
    return 0


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _summary(result: CompileResult) -> list[str]:
    m, report = result.manifest, result.delegation
    seconds = sum(result.seconds.values())
    slowest = max(result.seconds, key=lambda stage: result.seconds[stage])
    calls = sum(op.count for op in report.cpu_ops)
    lines = [
        f"{m.model} ({m.architecture}): {_count(len(m.sites), 'trained layer')}, "
        f"q={m.q} B={m.batch_size} T={m.seq_len} K={m.num_labels} state={m.state}",
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
    return [*lines, f"{result.path}  {result.file_bytes / 1e6:.1f} MB in {took}"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _shortened(ops: list[str]) -> str:
    return ", ".join(ops[:_MOST_OPS]) + (f" and {len(ops) - _MOST_OPS} more" if len(ops) > _MOST_OPS else "")


def _to_json(result: CompileResult) -> dict[str, Any]:
    from prgec.contract.inspection import inspect_program

    return {
        "output": str(result.path),
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

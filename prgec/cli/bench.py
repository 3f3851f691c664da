"""`prgec bench`: time and memory of a training step against what it replaces, and of compiling."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from prgec.backends import BACKENDS, IN_PLACE, STOCK
from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.compiler.options import EMBEDDING_BITS, QUANTIZE_SCHEMES
from prgec.errors import UsageError
from prgec.lab.bench.options import BenchOptions
from prgec.lab.bench.presets import PRESETS, narrowed
from prgec.lab.bench.variants import VARIANTS

if TYPE_CHECKING:
    from prgec.lab.bench.result import BenchResult

_DEFAULTS = BenchOptions(model="")
JSON_NAME, MARKDOWN_NAME, PLOT_NAME = "bench.json", "bench.md", "bench.png"


def _list_of(kind: click.ParamType[Any], metavar: str, default: tuple[Any, ...], help_text: str) -> dict[str, Any]:
    """Arguments of an option whose values are separated by commas; they arrive as a tuple."""

    def parse(ctx: click.Context, param: click.Parameter, value: str) -> tuple[Any, ...]:
        return tuple(kind.convert(part.strip(), param, ctx) for part in value.split(",") if part.strip())

    return {
        "metavar": f"{metavar},...",
        "callback": parse,
        "default": ",".join(map(str, default)),
        "show_default": True,
        "help": help_text,
    }


class _StepByDefault(click.Group):
    """Takes `prgec bench MODEL` for `prgec bench step MODEL`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["step", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_StepByDefault)
def bench() -> None:
    """Measure a training step (step, the default) or a compilation (compile)."""


@bench.command(name="step")
@click.argument("model")
@click.option(
    "--backend",
    type=click.Choice(list(BACKENDS)),
    default=_DEFAULTS.backend,
    show_default=True,
    help="Runtime that executes the programs.",
)
@click.option("--q", **_list_of(click.INT, "N", _DEFAULTS.q, "Queries a step."))
@click.option("--batch-size", **_list_of(click.INT, "N", _DEFAULTS.batch_size, "Examples a step."))
@click.option("--seq-len", **_list_of(click.INT, "N", _DEFAULTS.seq_len, "Tokens a row; every row is full."))
@click.option(
    "--quantize",
    **_list_of(
        click.STRING, "SCHEME", _DEFAULTS.quantize, f"Schemes of the frozen layers, of {', '.join(QUANTIZE_SCHEMES)}."
    ),
)
@click.option(
    "--quantize-embedding",
    type=click.Choice(EMBEDDING_BITS),
    default=_DEFAULTS.quantize_embedding,
    show_default=True,
    help="Bits of the embedding table; 0 keeps f32.",
)
@click.option(
    "--layers",
    **_list_of(
        click.STRING,
        "LAYERS",
        _DEFAULTS.layers,
        "Blocks to train, as prgec compile takes them; one choice, not a list of the matrix.",
    ),
)
@click.option(
    "--variants",
    **_list_of(
        click.STRING,
        "NAME",
        _DEFAULTS.variants,
        f"What to measure, of {', '.join(VARIANTS)}; exact@openvino is exact on another backend.",
    ),
)
@click.option("--repeats", type=int, default=_DEFAULTS.repeats, show_default=True, help="Timed steps of each variant.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for bench.json, bench.md and bench.png; programs stay in it for the next run.",
)
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    help="Fill a table of the paper: its rows and columns, or those of them that --q, --batch-size, --seq-len and "
    "--quantize name. With --out it is filled in parts (docs/bench.md).",
)
@click.option("--against-plan", "shows_plan", is_flag=True, help="Also show what prgec plan makes of the memory.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def step(as_json: bool, shows_plan: bool, preset: str | None, **flags: Any) -> int:
    """Measure a training step of MODEL against what it replaces.

    Lists such as --q 1,4 --seq-len 64,128 span a matrix. All variants of a cell are in memory at once and take turns,
    so that whatever else the machine does falls on all of them; memory is measured in a fresh process for each.
    """
    options = BenchOptions(**flags)
    options.check()
    console = stderr_console()
    if preset is not None:
        ctx = click.get_current_context()
        said = {name for name in flags if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
        return _fill(preset, options, said, as_json)
    # Imported here: the compiler takes seconds, and --help needs none of it.
    from prgec.lab.bench.run import run_bench

    result = run_bench(options, lambda text: console.print(text, markup=False, soft_wrap=True))
    if options.out is not None:
        _write(options.out, result)
    if as_json:
        print_json(result.to_json())
    else:
        from prgec.lab.bench.markdown import to_markdown

        print_lines(to_markdown(result).rstrip("\n"))
        if shows_plan:
            from prgec.lab.bench.against_plan import against_plan

            print_lines("", *against_plan(result))
    return 0


@bench.command(name="compile")
@click.argument("model", default="")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--layers", **_list_of(click.INT, "N", (2, 4, 8, 16, 32), "Blocks of the random Llamas that stand in for MODEL.")
)
@click.option("--routes", **_list_of(click.Choice([IN_PLACE, STOCK]), "ROUTE", (IN_PLACE, STOCK), "What to compare."))
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder for compile.json, compile.md and compile.png."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def compile_command(
    model: str,
    flags: tuple[str, ...],
    layers: tuple[int, ...],
    routes: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> int:
    """Measure compilations: seconds of each phase and peak memory, each in a process of its own.

    Without MODEL, random Llamas of hidden size 64 grow, so that the price of a layer is seen. FLAGS are those of
    `prgec compile`, after `--`: prgec bench compile smollm2 -- --quantize 8da4w.
    """
    if model.startswith("-"):
        model, flags = "", (model, *flags)
    if any(count < 1 for count in layers):
        raise UsageError(f"--layers is {','.join(map(str, layers))}; expected counts of at least 1")
    from prgec.core.machine.files import write_atomic
    from prgec.lab.bench.compilation import measure_compilations
    from prgec.lab.bench.compilation_report import plot, to_markdown

    console = stderr_console()
    words = ["prgec", "bench", "compile", *([model] if model else ["--layers", ",".join(map(str, layers))])]
    if routes != (IN_PLACE, STOCK):
        words += ["--routes", ",".join(routes)]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    table = measure_compilations(
        model,
        layers,
        routes,
        flags,
        shlex.join([*words, *(["--", *flags] if flags else [])]),
        lambda text: console.print(text, markup=False, soft_wrap=True),
    )
    if out is not None:
        write_atomic(out / "compile.json", (json.dumps(table.to_json(), indent=2) + "\n").encode())
        write_atomic(out / "compile.md", to_markdown(table).encode())
        if not model:
            plot(out / "compile.png", table)
    if as_json:
        print_json(table.to_json())
    else:
        print_lines(to_markdown(table).rstrip("\n"))
    return 0


def _fill(name: str, options: BenchOptions, said: set[str], as_json: bool) -> int:
    """Fill a table of the paper, as far as the command line requests."""
    if "variants" in said:
        raise UsageError("a preset fixes its variants; leave out --variants")
    if len(options.quantize) > 1:
        raise UsageError("a preset takes one --quantize")
    axes = {axis: getattr(options, axis) if axis in said else () for axis in ("q", "batch_size", "seq_len")}
    scheme = options.quantize[0] if "quantize" in said else ""
    whole, wanted = PRESETS[name], narrowed(PRESETS[name], **axes, quantize=scheme)
    console = stderr_console()
    from prgec.core.machine.files import write_atomic
    from prgec.lab.bench.preset_run import fill
    from prgec.lab.bench.preset_table import command_of, plot, to_markdown

    filled = fill(wanted, options, name, lambda text: console.print(text, markup=False, soft_wrap=True))
    is_part = set(wanted.columns()) <= set(whole.columns()) and not scheme
    shown = whole if is_part else wanted
    text = to_markdown(shown, filled, command_of(options.model, name, options.out))
    if options.out is not None:
        write_atomic(options.out / f"{name}.md", text.encode())
        if shown.has_chart:
            plot(options.out / f"{name}.png", shown, filled)
    if as_json:
        print_json({"preset": name, **filled.to_json(), "empty": {str(c): why for c, why in filled.reasons.items()}})
    else:
        print_lines(text.rstrip("\n"))
    return 0


def _write(folder: Path, result: BenchResult) -> None:
    from prgec.core.machine.files import write_atomic
    from prgec.lab.bench.markdown import to_markdown
    from prgec.lab.bench.plot import plot_bench

    document = json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n"
    write_atomic(folder / JSON_NAME, document.encode())
    write_atomic(folder / MARKDOWN_NAME, to_markdown(result).encode())
    plot_bench(folder / PLOT_NAME, result)

"""`prgec inspect`: what is inside a .pte."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from prgec.backends import details_of
from prgec.cli.compile_display import CompileDisplay
from prgec.cli.interrupt import end_on_terminate
from prgec.cli.options import FILE
from prgec.cli.render import print_json, print_lines, stdout_console
from prgec.core.contract.inspection import Inspection, inspect_program
from prgec.core.formats.materials import bill_of_materials
from prgec.core.machine.extras import check_compiler
from prgec.core.machine.versions import version_of
from prgec.errors import ProgramError, UsageError


@click.command("inspect")
@click.argument("program", type=click.Path(path_type=Path))
@click.option("--config", "as_config", is_flag=True, help="Print the TOML file for prgec compile -c, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
@click.option("--bom", is_flag=True, help="Print what went into it, as a CycloneDX document.")
@click.option("--reproduce", is_flag=True, help="Print the commands that make the program again.")
@click.option("--check", is_flag=True, help="With --reproduce: compile it again and compare the files part by part.")
@click.option("--model", metavar="MODEL", help="With --check: its checkpoint, where its name does not find it.")
@click.option(
    "--data", type=FILE, multiple=True, metavar="PATH", help="With --check: the rows it was compiled with; repeatable."
)
def inspect_command(
    program: Path, as_config: bool, as_json: bool, bom: bool, reproduce: bool, check: bool, **changes: Any
) -> int:
    """Show what PROGRAM trains, where its ops run, and why some stay outside the delegate."""
    if (check and not reproduce) or (any(changes.values()) and not check):
        raise UsageError("--check belongs to --reproduce, --model and --data to --check")
    inspection = inspect_program(program)
    if check:
        return _check(program, changes)
    if reproduce:
        print_lines(*_recipe(inspection, program))
    elif as_config:
        print_lines(*_config_lines(inspection, program))
    elif bom:
        print_lines(bill_of_materials(program, inspection.manifest))
    elif as_json:
        print_json(inspection.to_json())
    else:
        _render(inspection)
    return 0


def _config_lines(inspection: Inspection, program: Path) -> list[str]:
    if not inspection.manifest.config:
        raise ProgramError(
            "the program carries no configuration: it was compiled by an earlier prgec",
            where=program,
            hint="prgec inspect shows its pipeline and sizes",
        )
    return inspection.manifest.config.splitlines()


def _recipe(inspection: Inspection, program: Path) -> list[str]:
    """The commands, and what they need."""
    m = inspection.manifest
    _config_lines(inspection, program)
    data = " --data FILE" if m.prompts_sha256 else ""
    others = [
        f"{name} is {here}"
        for name, there in m.versions.items()
        if (here := version_of(name) or "not installed") != there
    ]
    lines = [
        f"prgec inspect {program} --config > again.toml",
        f"prgec compile -c again.toml{data} --no-cache -o again.pte",
        f"checkpoint  {m.model}, weights sha256 {m.base_sha256}",
        f"versions    {', '.join(f'{name} {version}' for name, version in sorted(m.versions.items()))}",
        f"here        {'; '.join(others) if others else 'the same versions'}",
    ]
    if m.prompts_sha256:
        lines.insert(3, f"data        prompts sha256 {m.prompts_sha256}")
    return lines


def _check(program: Path, changes: Mapping[str, Any]) -> int:
    """Compile again and compare; exit code 1 where something differs."""
    check_compiler()
    from prgec.compiler.reproduce import compare_again

    with end_on_terminate(), CompileDisplay() as display:
        found = compare_again(program, changes, display)
    if not found.differences:
        print_lines(f"equal: all {found.parts} parts, sha256 {found.sha256}")
        return 0
    print_lines(*found.differences, f"different: {program} is not what compiling it again makes here")
    return 1


def _render(inspection: Inspection) -> None:
    m, console = inspection.manifest, stdout_console()
    length = f"up to {m.seq_len}" if m.dynamic_seq_len else str(m.seq_len)
    console.print(f"{m.model} ({m.architecture}) on {m.backend}, contract {inspection.contract_version}", markup=False)
    console.print(f"  {m.step_text}  rows={m.num_rows}  T={length}  K={m.num_labels}  V={m.vocab_size}")
    console.print(
        f"  rank={m.rank}  alpha={m.alpha:g}  state={m.state}  weights={m.quantize}  "
        f"{len(m.sites)} sites, {_size(inspection.state_bytes)} of state"
    )
    console.print(f"  file {_size(inspection.pte.file_bytes)}, base sha256 {m.base_sha256[:16]}")
    for detail in details_of(m):
        console.print(f"  {detail}", markup=False)
    for name, method in sorted(inspection.pte.methods.items()):
        console.print(
            f"  method {name}: {len(method.delegates)} delegates, {sum(method.kernel_calls.values())} kernel "
            f"calls, {_size(method.planned_bytes)} planned"
        )
    _render_delegation(inspection)
    shapes = ", ".join(f"{k}={v}" for k, v in sorted(m.versions.items()))
    console.print(f"\npipeline  {m.pipeline}\nversions  {shapes}", markup=False)


def _render_delegation(inspection: Inspection) -> None:
    console = stdout_console()
    delegates = Table(title="delegates of forward", title_justify="left", box=None, pad_edge=False)
    for column in ("#", "backend", "ops", "most frequent"):
        delegates.add_column(column)
    for number, row in enumerate(inspection.delegates, start=1):
        top = sorted(row.get("op_counts", {}).items(), key=lambda item: -item[1])[:5]
        delegates.add_row(str(number), row["backend"], str(row["ops"]), ", ".join(f"{op} {n}" for op, n in top))
    outside = Table(title="ops outside", title_justify="left", box=None, pad_edge=False)
    for column in ("op", "calls", "why"):
        outside.add_column(column)
    for row in inspection.cpu_ops:
        outside.add_row(row["op"], str(row["count"]), row["reason"])
    console.print("", delegates, "", outside, sep="\n")


def _size(num_bytes: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} B"

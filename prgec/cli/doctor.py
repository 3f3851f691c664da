"""`prgec doctor`: what works on this machine, and what would have to be installed for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from prgec.cli.render import print_json, print_lines, stderr_console
from prgec.errors import BackendError

if TYPE_CHECKING:
    from prgec.compiler.doctor import Health


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def doctor(as_json: bool) -> int:
    """Report environment, versions, backends and memory; the exit code is 7 if nothing runs or compiles."""
    with stderr_console().status("examining this machine"):
        from prgec.compiler.doctor import examine

        health = examine()
    if as_json:
        print_json(health.to_json())
    else:
        print_lines(*_lines(health))
    return 0 if health.is_fit else BackendError.exit_code


def _lines(health: Health) -> list[str]:
    from prgec.compiler.doctor import REFERENCE_MODEL

    machine = health.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"machine   {machine['system']}, {machine['cpu']}, {machine['cores']} cores",
        f"memory    {machine['memory_bytes'] / 1e9:.1f} GB, {health.memory_available_bytes / 1e9:.1f} GB available",
        f"versions  {versions}",
        f"kernels   {'' if health.has_kernels else 'no: '}{health.kernels}",
    ]
    if health.compiler_missing:
        lines.append(f"compiler  no: {health.compiler_missing}")
    for each in health.backends:
        lines.append(f"{each.name:9} {'yes' if each.is_available else f'no: {each.reason}'}")
        if each.memory_bytes:
            size = f"{each.memory_bytes / 1e9:.0f} GB"
            lines.append(f"          compiling {REFERENCE_MODEL} takes about {size} of memory")
        if each.training_bytes:
            size = f"{each.training_bytes / 1e9:.1f} GB"
            lines.append(f"          training {REFERENCE_MODEL} in 4 bits takes about {size} of memory (prgec plan)")
        lines += [f"          {what} {value}" for what, value in each.found.items()]
    missing = "; ".join(health.arm64_missing)
    return [
        *lines,
        f"arm64     {f'no driver: missing {missing}' if missing else 'the driver builds and runs emulated'}",
    ]

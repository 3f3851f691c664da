"""Several adapters for one program, one after another: `--adapter`, repeated."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from prgec.core.contract.engine import Engine

ADAPTERS = click.option(
    "--adapter",
    "adapters",
    type=click.Path(path_type=Path),
    multiple=True,
    help="adapter.safetensors of a run, or a PEFT folder; the untrained program without it. Repeat for more: they take "
    "turns in one loaded program.",
)


def take_turns(program: Engine, adapters: Sequence[Path]) -> Iterator[tuple[Path | None, float]]:
    """Put each adapter into the program; yield it and the milliseconds that took. Once as it is, without any.

    Raises:
        ProgramError: If one does not fit; those before it have had their turn.
    """
    from prgec.core.formats.adapter import load_adapter

    if not adapters:
        yield None, 0.0
    for adapter in adapters:
        start = time.perf_counter()
        load_adapter(adapter, program)
        yield adapter, 1e3 * (time.perf_counter() - start)

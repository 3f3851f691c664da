"""Rows with weights in both drivers: bit for bit the same, and refused where nobody would weigh them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from prgec.core.data.rows_file import fingerprint, read_rows
from prgec.core.formats.journal import read_journal
from prgec.errors import DataError
from prgec.runtime.engines.executorch.runtime import read_constants
from tests.device.conftest import Drivers, write_rows

HINT = "compile it with --method exact --label-weights"


def _weighed(drivers: Drivers, tmp_path: Path) -> Drivers:
    path = tmp_path / "weighed.bin"
    write_rows(path, drivers.options.program, examples=7, candidates=2, seed=1, are_weighed=True)
    return replace(drivers, options=replace(drivers.options, rows=path, eval_rows=path, steps=20, eval_every=7))


@pytest.mark.parametrize("name", ["weighing", pytest.param("host-weighing", marks=pytest.mark.slow)])
def test_equals_the_python_driver(make: Callable[..., Drivers], name: str, tmp_path: Path) -> None:
    plain = make(name, steps=20, eval_every=7)
    drivers = _weighed(plain, tmp_path)
    assert drivers.cpp().returncode == 0
    drivers.python(out=tmp_path / "python")
    for file in ("journal.bin", "adapter.safetensors"):
        assert (tmp_path / "cpp" / file).read_bytes() == (tmp_path / "python" / file).read_bytes(), file
    # The run has the name of its weights, and other steps than one without them.
    manifest, tokenizer = read_constants(drivers.options.program)
    rows = read_rows(drivers.options.rows, manifest, tokenizer.sha256).right_rows()
    header = read_journal(tmp_path / "cpp" / "journal.bin").header
    assert header.rows_crc == fingerprint(rows) != fingerprint([replace(row, weights=()) for row in rows])
    assert plain.cpp(out=tmp_path / "plain").returncode == 0
    adapters = {(tmp_path / each / "adapter.safetensors").read_bytes() for each in ("cpp", "plain")}
    assert len(adapters) == 2


def test_who_cannot_weigh_says_so(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = _weighed(make("exact"), tmp_path)
    result = drivers.cpp()
    assert result.returncode != 0
    assert "error: rows have weights, and the program takes no label weights. Hint: " + HINT in result.stderr
    with pytest.raises(DataError, match="row 1 has weight.*takes no label weights.*" + HINT):
        drivers.python(out=tmp_path / "python")
    # Nothing is weighed where nothing is learnt.
    unweighed = write_rows(tmp_path / "plain.bin", drivers.options.program, examples=7, candidates=2, seed=1)
    assert drivers.cpp(rows=unweighed, steps=2, eval_every=0).returncode == 0

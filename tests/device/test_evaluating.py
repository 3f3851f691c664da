"""`prge_eval`: adapters take turns in a program that is loaded once, and score what they score in Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from prgec.core.data.rows_file import read_rows
from prgec.core.formats.adapter import load_adapter, save_adapter
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.training.evaluate import evaluate
from tests.device.conftest import Drivers, run_driver


@pytest.mark.parametrize("name", ["exact", "host-exact", "host"])
def test_adapters_take_turns(make: Callable[..., Drivers], name: str, tmp_path: Path) -> None:
    drivers = make(name, steps=3, snapshot_every=0, eval_every=0)
    assert drivers.cpp().returncode == 0
    program = open_pte(drivers.options.program)
    adapters = [tmp_path / "zero.safetensors", tmp_path / "cpp" / "adapter.safetensors"]
    save_adapter(adapters[0], program)
    turns = [adapters[1], adapters[0], adapters[1]]
    flags = [flag for each in turns for flag in ("--adapter", each)]
    rows = drivers.options.eval_rows
    result = run_driver(drivers.executable.with_name("prge_eval"), drivers.options.program, "--rows", rows, *flags)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("loaded in ")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["adapter"] for line in lines] == list(map(str, turns))
    assert all(0.0 < line["swap_ms"] < 1000.0 for line in lines)
    row_set = read_rows(rows, program.manifest, program.tokenizer.sha256)
    for line, adapter in zip(lines, turns, strict=True):
        load_adapter(adapter, program)
        expected = evaluate(program, row_set)
        assert expected is not None and line["loss"] == expected.loss
    assert lines[0]["loss"] == lines[2]["loss"] != lines[1]["loss"]


def test_what_is_wrong_is_reported_in_a_line(make: Callable[..., Drivers], tmp_path: Path) -> None:
    drivers = make("exact")
    executable = drivers.executable.with_name("prge_eval")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"nothing")
    refused = run_driver(executable, drivers.options.program, "--rows", drivers.options.eval_rows, "--adapter", bad)
    assert (refused.returncode, refused.stdout) == (4, "")
    assert refused.stderr.splitlines()[-1].startswith("error: not an adapter")
    assert run_driver(executable, drivers.options.program).returncode == 2

"""Both drivers refuse a program whose manifest breaks the rule of a field, and name the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from prgec.core.contract.fields import ruled_fields
from prgec.core.contract.manifest import Manifest
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.open import open_pte
from tests.device.conftest import Drivers

RULED = {item.name: item for item in ruled_fields(Manifest)}
WRONG: dict[type, str] = {str: "1", bool: "0", int: "-1", float: '""'}


def with_value(data: bytes, name: str, wrong: str) -> bytes:
    """Return a program of equal size whose manifest has another value in one field."""
    start = data.index(b'{"a_seed": ')
    at = data.index(f'"{name}": '.encode(), start) + len(name) + 3
    value, size = json.JSONDecoder().raw_decode(data[at + 1 : at + 20000].decode("utf-8", "replace"))
    end = at + 1 + size
    assert value is not None
    return data[:at] + wrong.encode().ljust(end - at) + data[end:]


@pytest.mark.parametrize("name", RULED)
def test_a_broken_rule_is_refused(make: Callable[..., Drivers], tmp_path: Path, name: str) -> None:
    drivers = make(steps=1, eval_rows=None, eval_every=0)
    bad = tmp_path / "bad.pte"
    bad.write_bytes(with_value(drivers.options.program.read_bytes(), name, WRONG.get(RULED[name].kind, "0")))
    with pytest.raises(ProgramError, match=rf"{name}|lacks a field"):
        open_pte(bad, verify=False)
    result = drivers.cpp(program=bad, no_verify=True)
    assert result.returncode == ProgramError.exit_code
    assert result.stderr == f"error: the program's manifest has no usable {name}: compile it again\n"

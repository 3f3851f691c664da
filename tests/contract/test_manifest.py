"""The manifest: every rule refuses what breaks it, and the C++ driver and the page have the same rules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prgec.core.contract.fields import RuledField, ruled_fields
from prgec.core.contract.manifest import Manifest, Site
from prgec.errors import ProgramError
from tests.tiny_program import MANIFEST

ROOT = Path(__file__).resolve().parents[2]
RULED = {item.name: item for item in ruled_fields(Manifest)}
OTHER_TYPE: dict[type, Any] = {str: 1, bool: 1, int: "1", float: "1"}
APART = {
    "state, state_access": {"state": "host"},
    "state, method": {"state": "dual", "method": "exact", "optimizer": "norm", "q": 1},
    "method, optimizer": {"optimizer": "norm"},
    "method, q": {"method": "exact", "optimizer": "norm", "q": 2},
    "method, accumulates": {"accumulates": True},
    "method, label_weights": {"label_weights": True},
    "prefix, hidden_size": {"prefix": "method"},
    "method, hidden_size": {"method": "side", "q": 1, "num_blocks": 1},
    "method, num_blocks": {"method": "side", "q": 1, "hidden_size": 1},
    "state, method, update": {"update": {"clip": 1.0}},
    "lr": {"lr": -1.0},
}


def parse(**changes: Any) -> Manifest:
    """Parse a manifest whose fields were changed; None takes a field out."""
    raw = {**json.loads(MANIFEST.to_json()), **changes}
    return Manifest.from_json(json.dumps({name: value for name, value in raw.items() if value is not None}))


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert parse() == MANIFEST


@pytest.mark.parametrize("name", RULED)
def test_a_value_of_another_type_is_refused(name: str) -> None:
    with pytest.raises(ProgramError, match=f"the program's manifest has {name} = "):
        parse(**{name: OTHER_TYPE.get(RULED[name].kind, {"x": []})})


@pytest.mark.parametrize("name", [name for name, item in RULED.items() if item.kind is int])
def test_an_integer_out_of_bounds_is_refused(name: str) -> None:
    rule = RULED[name].rule
    for value in (rule.low - 1, rule.high + 1):
        with pytest.raises(ProgramError, match=f"has {name} = {value}; expected an integer from {rule.low} to"):
            parse(**{name: value})


@pytest.mark.parametrize("name", [name for name, item in RULED.items() if item.rule.choices])
def test_a_text_that_is_no_choice_is_refused(name: str) -> None:
    with pytest.raises(ProgramError, match=rf"has {name} = 'x'; expected one of '"):
        parse(**{name: "x"})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["alpha", "lr"])
def test_a_number_that_is_not_finite_is_refused(name: str, value: float) -> None:
    with pytest.raises(ProgramError, match=f"has {name} = .*; expected a finite number"):
        parse(**{name: value})


@pytest.mark.parametrize("item", RULED.values(), ids=list(RULED))
def test_a_field_without_a_default_must_be_there(item: RuledField) -> None:
    if item.is_required:
        with pytest.raises(ProgramError, match=f"lacks a field: .*'{item.name}'"):
            parse(**{item.name: None})
    else:
        found = getattr(parse(**{item.name: None}), item.name)
        assert found == item.default


@pytest.mark.parametrize("names", APART)
def test_fields_that_do_not_go_together_are_refused(names: str) -> None:
    held = " and ".join(f"{name} = .*" for name in names.split(", "))
    with pytest.raises(ProgramError, match=f"the program's manifest has {held}, which do not go together"):
        parse(**APART[names])


@pytest.mark.parametrize("name", [item.name for item in ruled_fields(Site)])
def test_a_site_is_checked_too(name: str) -> None:
    site = {"name": "head", "index": 0, "in_features": 4, "out_features": 4}
    for value in (True, -1):
        with pytest.raises(ProgramError, match=f"has {name} = "):
            parse(sites=[{**site, name: value}])


def test_programs_that_no_machine_holds_are_refused() -> None:
    for changes in ({"batch_size": 1 << 20, "seq_len": 1 << 20}, {"rank": 1 << 20}):
        with pytest.raises(ProgramError, match="than any program can hold"):
            parse(**changes, sites=[{"name": "head", "index": 0, "in_features": 1 << 20, "out_features": 4}])
    with pytest.raises(ProgramError, match="names a site twice"):
        parse(sites=[{"name": "head", "index": n, "in_features": 4, "out_features": 4} for n in range(2)])


def test_the_driver_and_the_page_have_these_rules() -> None:
    command = [sys.executable, str(ROOT / "tools" / "manifest_table.py"), "--check"]
    assert subprocess.run(command, check=False, capture_output=True, text=True).stdout == ""

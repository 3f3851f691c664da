"""A little of `python tools/flips.py`: programs with other bits are refused before anything of them runs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from prgec.core.contract.checksums import read_checksums
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.open import open_pte
from tests.checks.flips import REFUSED, TRAINED, count, flip, open_in_python
from tests.tiny_inputs import make_inputs


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("flips"), "exact")[0]


def test_a_flip_changes_one_to_four_bits() -> None:
    numbers = [flip(bytes(99), random.Random(seed)) for seed in range(50)]
    assert {sum(byte.bit_count() for byte in each) for each in numbers} == {1, 2, 3, 4}


def test_every_flip_is_refused(program: Path) -> None:
    assert open_in_python(program) == TRAINED
    assert count(program, 240, 1, open_in_python) == {REFUSED: 240}


def test_checksums_cannot_get_lost(program: Path, tmp_path: Path) -> None:
    found = read_checksums(program)
    assert found is not None
    data = program.read_bytes()[: sum(part.size for part in found.parts)]
    bare = tmp_path / "bare.pte"
    bare.write_bytes(data)
    with pytest.raises(ProgramError, match="the program has lost its checksums"):
        open_pte(bare)
    assert open_pte(bare, verify=False).manifest.has_checksums
    # A program of an earlier version never had any.
    old = data.replace(b'"has_checksums": true', b'"has_checksumz": true')
    assert old != data
    bare.write_bytes(old)
    assert not open_pte(bare).manifest.has_checksums


def test_who_asks_for_it_gets_a_damaged_program(program: Path, tmp_path: Path) -> None:
    found = read_checksums(program)
    assert found is not None
    data = bytearray(program.read_bytes())
    # In the middle of the weights, which are constants on this backend.
    data[found.parts[0].size + found.parts[1].size // 2] ^= 1
    (tmp_path / "bad.pte").write_bytes(data)
    with pytest.raises(ProgramError, match="the program is damaged: constants, bytes"):
        open_pte(tmp_path / "bad.pte")
    open_pte(tmp_path / "bad.pte", verify=False)

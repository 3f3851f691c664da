"""Packed weights in a file under Python: the same bits as in memory, packed once, and no run that fails for them."""

from __future__ import annotations

import fcntl
import gc
import os
import time
from pathlib import Path

import pytest

from prgec.core.machine.packed_weights import list_packed
from prgec.runtime.engines.executorch import library, methods
from prgec.runtime.engines.executorch.open import open_pte
from tests.e2e.conftest import PROGRAMS, Compile
from tests.lockstep import Run, random_steps


@pytest.fixture
def path(compile_once: Compile) -> Path:
    return compile_once(**PROGRAMS["xnnpack-seeded"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where packed weights go, of small programs too."""
    monkeypatch.setenv("PRGEC_CACHE", str(tmp_path))
    monkeypatch.setattr(methods, "WORTH_BYTES", 0)
    return tmp_path / "packed"


def _trained(path: Path) -> str:
    """Hash of the state after some steps; nothing of the program stays open."""
    program = open_pte(path)
    run = Run(program, eps=1e-2, seed=3)
    for examples, lr in random_steps(4, program.manifest, lr=5e-3, pool=6):
        run.step(examples, lr)
    run.trainer.flush()
    found = program.state_sha256()
    del run, program
    gc.collect()
    return found


def test_changes_no_bit_and_packs_once(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _trained(path)
    (weights,) = folder.glob("*.xnn")
    assert (weights.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [(each.program, each.in_use) for each in list_packed(folder)] == [(str(path), False)]
    before = weights.read_bytes(), weights.stat().st_mtime_ns
    assert _trained(path) == found
    assert (weights.read_bytes(), weights.stat().st_mtime_ns) == before
    monkeypatch.setattr(methods, "WORTH_BYTES", path.stat().st_size + 1)
    weights.unlink()
    assert _trained(path) == found
    assert not [*folder.glob("*.xnn")]


def test_damage_costs_a_warning(path: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = _trained(path)
    (weights,) = folder.glob("*.xnn")
    data = weights.read_bytes()
    weights.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    assert _trained(path) == found
    assert weights.read_bytes() == data
    assert [each.message for each in caplog.records if each.name == library.__name__] == [
        f"the packed weights are damaged, packing them again: {weights}"
    ]


def test_who_comes_second_has_them_in_memory(path: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = _trained(path)
    first = open_pte(path)
    assert [each.in_use for each in list_packed(folder)] == [True]
    assert _trained(path) == found
    (said,) = [each.message for each in caplog.records if each.name == library.__name__]
    assert said.startswith("the packed weights are kept in memory: ")
    assert first.read_state()


def test_what_nobody_will_ask_for_again_makes_room(path: Path, folder: Path) -> None:
    folder.mkdir(0o700)
    old, new, now = folder.parent / "old.pte", folder.parent / "new.pte", time.time()
    for program, written in ((old, now - 200), (new, now - 50)):
        program.write_bytes(b"")
        os.utime(program, (written, written))
    gone = folder.parent / "gone.pte"
    said = {"a": gone, "b": new, "c": old, "d": gone, "e": "", "f": "gone.pte", "0": "/gone?.pte", "1": new / "in.pte"}
    for digit, program in said.items():
        (folder / f"{digit * 64}.xnn").write_bytes(b"weights")
        seal = folder / f"{digit * 64}.seal"
        seal.write_text(f"prge-packed 1 7 0123abcd\n{program}\n" if program else "")
        os.utime(seal, (now - 100, now - 100))
    (folder / "mine.seal").write_text(f"prge-packed 1 7 0123abcd\n{gone}\n")
    with (folder / f"{'d' * 64}.seal").open() as in_use:
        fcntl.flock(in_use, fcntl.LOCK_EX)
        _trained(path)
    left = {each.name[0] for each in folder.iterdir() if each.stem == each.name[0] * 64}
    assert left == {"c", "d", "e", "f", "0"}, "in use, not outdated, or of a program that cannot be looked up"
    assert (folder / "mine.seal").exists()
    assert str(path) in [each.program for each in list_packed(folder)]

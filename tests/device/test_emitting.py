"""`prge_emit`: the shards it writes are those of the Python driver, byte for byte."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from prgec.cli.main import main
from prgec.core.data.first_tokens import FirstTokens
from prgec.errors import DataError
from prgec.runtime.engines.executorch.emitting_program import EmittingProgram
from prgec.serve.side.emit import EmitOptions, emit

KEY = bytes(range(32))


@pytest.fixture(scope="module")
def emitter(executable: Path) -> Path:
    return executable.with_name("prge_emit")


@pytest.fixture(scope="module")
def rows(side_pte: Path, train_jsonl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.bin"
    assert main(["tokenize", str(side_pte), str(train_jsonl), "-o", str(path)]) == 0
    path.with_name("key").write_bytes(KEY)
    return path


def _run(emitter: Path, program: Path, rows: Path, out: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [emitter, program, "--rows", rows, "--key", rows.with_name("key"), "--out", out, *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("shard-*")}


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (EmitOptions(), ()),
        (EmitOptions(dtype="i8"), ("--dtype", "i8")),
        (EmitOptions(y_pre="secret", dtype="i8"), ("--y-pre", "secret", "--dtype", "i8")),
        (EmitOptions(label_dp=0.5), ("--label-dp", "0.5")),
        (EmitOptions(y_pre="secret", label_dp=2.0), ("--y-pre", "secret", "--label-dp", "2")),
    ],
)
def test_bytes_are_those_of_the_python_driver(
    emitter: Path,
    side_backbone: EmittingProgram,
    side_rows: FirstTokens,
    rows: Path,
    tmp_path: Path,
    options: EmitOptions,
    flags: tuple[str, ...],
) -> None:
    emit(side_backbone, side_rows, tmp_path / "python", KEY, replace(options, shard_rows=24))
    done = _run(emitter, side_backbone.path, rows, tmp_path / "cpp", "--shard-rows", "24", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert "64 rows in 3 shards, 3 of them new" in done.stdout
    assert _shards(tmp_path / "cpp") == _shards(tmp_path / "python") != {}


def test_it_goes_on_and_leaves_what_is_there(emitter: Path, side_pte: Path, rows: Path, tmp_path: Path) -> None:
    assert _run(emitter, side_pte, rows, tmp_path, "--shard-rows", "24").returncode == 0
    before = _shards(tmp_path)
    (tmp_path / "shard-00001.safetensors").unlink()
    done = _run(emitter, side_pte, rows, tmp_path, "--shard-rows", "24")
    assert "1 of them new" in done.stdout and _shards(tmp_path) == before
    done = _run(emitter, side_pte, rows, tmp_path, "--shard-rows", "20")
    assert done.returncode == 1 and "of another program or of other rows" in done.stderr
    assert _shards(tmp_path) == before


def test_labels_of_a_folder_are_made_in_one_way(
    emitter: Path, side_backbone: EmittingProgram, side_rows: FirstTokens, rows: Path, tmp_path: Path
) -> None:
    """A folder that was begun with true labels is not finished as if they were hidden, nor by the other driver."""
    program = side_backbone.path
    assert _run(emitter, program, rows, tmp_path).returncode == 0
    before = _shards(tmp_path)
    for flags in (("--label-dp", "2"), ("--y-pre", "secret")):
        done = _run(emitter, program, rows, tmp_path, *flags)
        assert done.returncode == 1 and "the folder was emitted with other options" in done.stderr
    with pytest.raises(DataError, match="emitted with other answers or options"):
        emit(side_backbone, side_rows, tmp_path, KEY, EmitOptions(label_dp=2.0))
    assert _shards(tmp_path) == before


def test_what_does_not_fit_is_reported(
    emitter: Path, side_pte: Path, tiny_pte: Path, rows: Path, tmp_path: Path
) -> None:
    done = _run(emitter, tiny_pte, rows, tmp_path)
    assert done.returncode == 1 and "speaks contract version 1; prge_emit runs 3" in done.stderr
    damaged = bytearray(side_pte.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.pte").write_bytes(damaged)
    done = _run(emitter, tmp_path / "damaged.pte", rows, tmp_path)
    assert done.returncode == 1 and "the program is damaged" in done.stderr and done.stderr.count("\n") == 1
    for flags in (("--dtype", "f64"), ("--y-pre", "none")):
        assert _run(emitter, side_pte, rows, tmp_path, *flags).returncode == 2
    for epsilon in ("0", "nan", "2x", "1e9"):
        done = _run(emitter, side_pte, rows, tmp_path, "--label-dp", epsilon)
        assert done.returncode == 1 and f"--label-dp is {epsilon}; expected a number from" in done.stderr
    (rows.parent / "short").write_bytes(b"x")
    command = [emitter, side_pte, "--rows", rows, "--key", rows.parent / "short", "--out", tmp_path / "o"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "a device key has 32 bytes, this file 1" in done.stderr
    assert not _shards(tmp_path)

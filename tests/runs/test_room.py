"""A run that was planned to take more memory than there is ends before it begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prgec.core.contract.checksums import append_checksums
from prgec.errors import ProgramError, UsageError
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.run import run
from tests.tiny_program import MANIFEST, build_pte


def test_a_run_this_machine_cannot_hold(tokenizer_blob: bytes, train_jsonl: Path, tmp_path: Path) -> None:
    program = build_pte(tmp_path / "m.pte", replace(MANIFEST, planned_bytes=10**15), tokenizer_blob)
    options = RunOptions(program=program, data=train_jsonl, steps=2, out=tmp_path / "out")
    with pytest.raises(UsageError, match=r"training takes about 1000000.00 GB of memory, and .* GB are free.*--ignore"):
        run(options)
    assert not options.out.exists()  # type: ignore[union-attr]
    assert run(replace(options, ignore_memory=True)).steps == 2


def test_a_program_is_not_compared_where_somebody_says_so(
    tokenizer_blob: bytes, train_jsonl: Path, tmp_path: Path
) -> None:
    """The estimate of training's memory is compared, too."""
    program = build_pte(tmp_path / "m.pte", MANIFEST, tokenizer_blob)
    append_checksums(program, None)
    program.write_bytes(program.read_bytes().replace(b"bag-of-words", b"bag-of-weeds"))
    options = RunOptions(program=program, data=train_jsonl, steps=2, out=tmp_path / "out")
    with pytest.raises(ProgramError, match="the program is damaged"):
        run(options)
    assert run(replace(options, no_verify=True)).steps == 2

"""A shared fixture is made once for all workers, and again if making it failed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.shared import Shared


def test_the_first_makes_it_and_the_others_wait(tmp_path: Path) -> None:
    makers: list[Path] = []

    def make(path: Path) -> None:
        makers.append(path)
        path.write_text("whole")

    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: Shared(tmp_path).once("a", make), range(8)))
    assert len(makers) == 1
    assert {path.read_text() for path in paths} == {"whole"}


def test_what_failed_is_made_again(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("interrupted")

    shared = Shared(tmp_path)
    with pytest.raises(RuntimeError, match="interrupted"):
        shared.once("a", fail)
    assert shared.once("a", lambda path: path.write_text("whole")).read_text() == "whole"

"""EXPECTTEST_ACCEPT=1 rewrites golden texts, inline and in files; without it a difference fails."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.passes import golden

SCRIPT = '''\
from tests.passes.golden import expect

expect(
    "two\\nlines\\n",
    """{literal}""",
)
'''


def test_accept_rewrites_the_literal_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(literal="old"))
    with pytest.raises(AssertionError, match="-old"):
        runpy.run_path(str(script))
    monkeypatch.setenv("EXPECTTEST_ACCEPT", "1")
    runpy.run_path(str(script))
    monkeypatch.delenv("EXPECTTEST_ACCEPT")
    assert script.read_text() == SCRIPT.format(literal="\\\ntwo\nlines\n")
    runpy.run_path(str(script))
    assert list(tmp_path.iterdir()) == [script]


def test_accept_rewrites_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "GOLDEN", tmp_path)
    (tmp_path / "graph.txt").write_text("old\n")
    with pytest.raises(AssertionError, match="make golden"):
        golden.expect_file("new\n", "graph.txt")
    monkeypatch.setenv("EXPECTTEST_ACCEPT", "1")
    golden.expect_file("new\n", "graph.txt")
    monkeypatch.delenv("EXPECTTEST_ACCEPT")
    golden.expect_file("new\n", "graph.txt")
    assert (tmp_path / "graph.txt").read_text() == "new\n"

"""Runs are found by looking, whatever state their folders are in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from prgec.core.machine.folder_lock import FolderLock
from prgec.serve.ui import run_list
from prgec.serve.ui.programs import KnownProgram, graph_rows, known, pass_names
from prgec.serve.ui.run_list import RunList
from tests.ui.synthetic import write_run


def test_runs_are_found_in_folders_of_folders_and_nothing_else_is(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    write_run(tmp_path / "demo-1" / "exact")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    write_run(tmp_path / ".hidden" / "x")
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert {run.name for run in RunList(tmp_path).runs()} == {"one", "demo-1/exact"}
    assert RunList(tmp_path / "gone").runs() == []


def test_an_id_is_of_one_run_and_stays(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
    run_list = RunList(tmp_path)
    found = run_list.find(run_list.id_of(folder))
    assert found is not None and found.folder == folder
    assert RunList(tmp_path).id_of(folder) == run_list.id_of(folder)
    assert run_list.find("one") is run_list.find("../one") is run_list.find("") is None


def test_what_runs_are_at(tmp_path: Path) -> None:
    write_run(tmp_path / "complete")
    write_run(tmp_path / "interrupted", status="interrupted")
    write_run(tmp_path / "cut", is_done=False)
    write_run(tmp_path / "going", is_done=False)
    (write_run(tmp_path / "cut again") / "journal.partial.bin").write_bytes(b"")
    with FolderLock(tmp_path / "going"):
        found = {run.name: (run.status, run.can_resume, run.process) for run in RunList(tmp_path).runs()}
        assert RunList(tmp_path).runs()[0].name == "going"
    assert found == {
        "complete": ("complete", False, None),
        "interrupted": ("interrupted", True, None),
        "cut": ("cut off", True, None),
        "cut again": ("cut off", True, None),
        "going": ("under way", False, os.getpid()),
    }


def test_a_run_that_ends_while_it_is_read_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look for the process that writes it comes first: never both no process and no summary of a whole run."""
    run = write_run(tmp_path / "a", is_done=False)

    def ends(folder: Path) -> None:
        (run / "metrics.partial.jsonl").unlink()
        write_run(tmp_path / "b").joinpath("run.json").rename(run / "run.json")

    monkeypatch.setattr(run_list, "holder", ends)
    assert [each.status for each in RunList(tmp_path).runs() if each.folder == run] == ["complete"]


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("{", "its run.json is damaged"),
        ("[]", "its run.json is damaged"),
        (
            '{"contract": 99, "status": 7, "options": [], "manifest": null}',
            "made by another version of prgec (contract 99)",
        ),
        ("{}", "made by another version of prgec (contract None)"),
        ('{"contract": 1}', ""),
    ],
)
def test_a_run_of_another_version_is_listed_with_a_remark(tmp_path: Path, text: str, remark: str) -> None:
    (write_run(tmp_path / "odd") / "run.json").write_text(text)
    (run,) = RunList(tmp_path).runs()
    assert run.remark == remark
    assert run.fact("options", "lr") is run.fact("manifest", "model") is None
    assert isinstance(run.status, str)


def test_a_summary_that_changes_is_read_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one")
    run_list = RunList(tmp_path)
    assert run_list.runs()[0].status == "complete"
    (folder / "run.json").write_text(json.dumps({"contract": 1, "status": "stopped: it diverged"}))
    assert run_list.runs()[0].status == "stopped: it diverged"


def test_programs_are_those_below_those_of_runs_and_those_named(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    write_run(root / "one")
    for path in (root / "a.pte", root / "one" / "b.pte", tmp_path / "named.pte"):
        path.write_bytes(b"")
    found = known(RunList(root), [tmp_path / "named.pte"])
    assert [(each.name, each.is_there) for each in found] == [
        (str(tmp_path / "named.pte"), True),
        ("a.pte", True),
        ("one/b.pte", True),
        ("one/gone.pte", False),
    ]


def test_graphs_are_searched_with_lines_around(tmp_path: Path) -> None:
    program = KnownProgram("id", "m", tmp_path / "m.pte")
    assert pass_names(program) == []
    program.passes.mkdir()
    (program.passes / "02-b.txt").write_text("\n".join(f"line {n}" for n in range(100)))
    (program.passes / "01-a.txt").write_text("one")
    (program.passes / "notes.txt").write_text("no pass")
    assert pass_names(program) == ["01-a.txt", "02-b.txt"]
    rows, hits = graph_rows(program, "02-b.txt", "LINE 50")
    assert hits == 1 and [(row.number, row.is_hit) for row in rows] == [(n, n == 51) for n in range(49, 54)]
    assert len(graph_rows(program, "02-b.txt", "")[0]) == 100
    assert graph_rows(program, "notes.txt", "") == graph_rows(program, "../x", "") == ([], 0)

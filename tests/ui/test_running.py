"""Runs that the page starts are processes of their own, which go on without it; a page that starts later finds them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from prgec.cli.main import main
from prgec.core.machine.folder_lock import FolderLock, holder
from tests.processes import wait_until
from tests.ui.running import RunningUi, error_of
from tests.ui.synthetic import write_run

pytest.importorskip("starlette", reason="starlette is not installed")

# More than a test waits for.
ENDLESS = 10_000_000


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder of runs; what runs there ends with the test."""
    root = tmp_path / "runs"
    yield root
    for folder in root.iterdir() if root.exists() else ():
        process = holder(folder)
        if process is not None and process != os.getpid():
            os.kill(process, signal.SIGKILL)


def _start(ui: RunningUi, program: Path, data: Path, name: str, **form: object) -> str:
    """Start a run; return its id."""
    return ui.start_run(program=program, data=data, name=name, **form)


def _steps(ui: RunningUi, run: str) -> int:
    _, steps = ui.live(run)
    assert steps is not None
    return steps


def _status(ui: RunningUi, run: str) -> str:
    status, _ = ui.live(run)
    assert status is not None
    return status


def test_a_run_from_its_start_to_its_end(root: Path, tiny_pte: Path, train_jsonl: Path) -> None:
    with RunningUi(root) as ui:
        run = _start(ui, tiny_pte, train_jsonl, "long", steps=ENDLESS, snapshot_every=100)
        wait_until(lambda: _steps(ui, run) > 20)
        first = _steps(ui, run)
        wait_until(lambda: _steps(ui, run) > first)
        process = holder(root / "long")
        status, page, _ = ui.post("/runs/new", program=tiny_pte, data=train_jsonl, name="long", do="start")
        assert status == 400
        assert f"long is being written already, by process {process}" in error_of(page)
        ui.end(signal.SIGKILL)
    first = len((root / "long" / "metrics.partial.jsonl").read_bytes())
    wait_until(lambda: len((root / "long" / "metrics.partial.jsonl").read_bytes()) > first)
    with RunningUi(root) as again:
        assert again.id_of("long") == run
        assert (_status(again, run), holder(root / "long")) == ("under way", process)
        assert again.post(f"/runs/{run}/stop")[0] == 303
        wait_until(lambda: _status(again, run) == "interrupted")
        done = _steps(again, run)
        assert again.post(f"/runs/{run}/stop")[0] == 409
        assert again.post(f"/runs/{run}/resume")[0] == 303
        wait_until(lambda: _steps(again, run) > done)
        os.kill(holder(root / "long") or 0, signal.SIGKILL)
        wait_until(lambda: _status(again, run) == "cut off")


def test_two_pages_start_the_same_run(root: Path, tiny_pte: Path, train_jsonl: Path) -> None:
    """The page's own notes, and the folder's lock where another page's notes do not help."""
    with RunningUi(root) as one, RunningUi(root) as two:
        run = _start(one, tiny_pte, train_jsonl, "same", steps=ENDLESS)
        status, page, _ = two.post("/runs/new", program=tiny_pte, data=train_jsonl, name="same", do="start")
        assert status == 400 and "same is being written already, by process " in error_of(page)
        wait_until(lambda: _steps(one, run) > 0)
        assert one.post(f"/runs/{run}/stop")[0] == 303
        wait_until(lambda: _status(two, run) == "interrupted")
        with FolderLock(root / "same"):
            status, page, _ = two.post(f"/runs/{run}/resume")
            assert (status, error_of(page)) == (400, "same is being written already, by process " + str(os.getpid()))


def test_a_run_that_cannot_begin_says_why(root: Path, tiny_pte: Path, tmp_path: Path, train_jsonl: Path) -> None:
    with RunningUi(root) as ui:
        run = _start(ui, tiny_pte, tmp_path / "gone.jsonl", "no-data")
        wait_until(lambda: "gone.jsonl" in error_of(ui.get(f"/runs/{run}")))
        run = _start(ui, tmp_path / "gone.pte", train_jsonl, "no-program")
        wait_until(lambda: "gone.pte" in error_of(ui.get(f"/runs/{run}")))
        status, page, _ = ui.post("/runs/new", program=tiny_pte, data=train_jsonl, name="x", steps=0, do="start")
        assert (status, error_of(page)) == (400, "--steps is 0; expected at least 1")
        assert 'value="0"' in page, "what was typed is kept"


def test_a_model_that_is_not_there_says_so(root: Path) -> None:
    with RunningUi(root) as ui:
        status, page, place = ui.post("/programs/new", model="no-such-model", seq_len=32, do="start")
        assert (status, place[:6]) == (303, "/jobs/"), error_of(page)
        wait_until(lambda: "no-such-model" in error_of(ui.get(place)))
        _, _, place = ui.post("/programs/new", model="demo", do="start")
        (note,) = [
            n for n in map(json.loads, map(Path.read_text, root.glob(".prgec-ui/*/job.json"))) if n["id"] in place
        ]
        os.kill(note["process"], signal.SIGKILL)
        wait_until(lambda: error_of(ui.get(place)) == "it was ended before it was done")
        status, page, _ = ui.post("/programs/new", model="demo", rank=0, name="a", do="start")
        assert status == 400 and "rank" in error_of(page)
        assert not (root / "a.pte").exists()


def test_a_run_of_the_command_line_is_shown_and_tried(
    root: Path, tiny_pte: Path, train_jsonl: Path, dev_jsonl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--data", train_jsonl, "--eval-data", dev_jsonl, "--steps", 300, "--lr", 0.1, "--out", root / "cli"]
    assert main([*map(str, ("run", tiny_pte, *flags))]) == 0
    capsys.readouterr()
    texts = ["a lovely film", "a dull plot"]
    command = ["predict", tiny_pte, *(part for text in texts for part in ("--text", text)), "--json", "--task", "sst2"]
    with RunningUi(root) as ui:
        run = ui.id_of("cli")
        page = ui.get(f"/runs/{run}")
        assert "300 of 300 steps" in page and "Answers before and after" in page
        (program,) = set(re.findall(r'href="(/programs/[0-9a-f]{16})"', ui.get("/programs")))
        assert "no delegation report" in error_of(ui.get(program)) and "--dump-passes" in ui.get(program)
        status, page, _ = ui.post(f"{program}/try", texts="\n".join(texts), task="sst2", run=run, do="predict")
        assert status == 200, error_of(page)
        cells = re.findall(r"<strong>(.*?)</strong>", page)
        for place, adapter in ((0, []), (1, ["--adapter", root / "cli" / "adapter.safetensors"])):
            assert main([*map(str, (*command, *adapter))]) == 0
            answers = [row["completion"].strip() for row in json.loads(capsys.readouterr().out)["predictions"]]
            assert cells[place::2] == answers
        assert cells[1::2] == ["great", "terrible"]
        status, page, _ = ui.post(f"{program}/try", say="hello", do="chat")
        assert status == 400 and "compile it with --generate --context" in error_of(page)


def test_a_program_that_is_gone(root: Path) -> None:
    write_run(root / "one")
    with RunningUi(root) as ui:
        (program,) = set(re.findall(r'href="(/programs/[0-9a-f]{16})"', ui.get("/programs")))
        assert "gone</span>" in ui.get("/programs")
        assert "the program is gone" in error_of(ui.get(program))
        status, page, _ = ui.post(f"{program}/try", texts="a", task="sst2", do="predict")
        assert status == 400 and "the program is gone" in error_of(page)


def test_odd_folders_do_not_break_the_list(root: Path) -> None:
    write_run(root / "good")
    (write_run(root / "damaged") / "run.json").write_text("{")
    other = write_run(root / "other", contract=99, manifest=7, options=[1], samples=[{"prompt": 1}], accuracy="high")
    (other / "metrics.jsonl").write_text('{"step": 1, "loss"\n[]\n')
    write_run(root / "going", is_done=False)
    with RunningUi(root) as ui:
        names = ("good", "damaged", "other", "going")
        ids = {name: ui.id_of(name) for name in names}
        assert "made by another version of prgec (contract 99)" in ui.get(f"/runs/{ids['other']}")
        assert "2 lines of its metrics are damaged" in ui.get(f"/runs/{ids['other']}")
        assert "its run.json is damaged" in ui.get(f"/runs/{ids['damaged']}")
        page = ui.get("/compare?" + "&".join(f"run={name}" for name in ids.values()))
        assert "damaged: the run&#39;s files are damaged" in page and "other" in page
        assert ui.request("GET", f"/compare?run={ids['good']}")[0] == 400


def test_what_has_not_changed_is_not_sent_again(root: Path) -> None:
    run = write_run(root / "one", is_done=False)
    with RunningUi(root) as ui:
        for path in ("/live", f"/runs/{ui.id_of('one')}/live", "/demo/live"):
            _, _, headers = ui.request("GET", path)
            status, text, _ = ui.request("GET", path, If_None_Match=headers["etag"])
            assert (status, text) == (304, "")
        path = f"/runs/{ui.id_of('one')}/live"
        seen = ui.request("GET", path)[2]["etag"]
        with (run / "metrics.partial.jsonl").open("a") as file:
            file.write('{"step": 41, "loss": 0.5, "lr": 0.1}\n')
        assert ui.request("GET", path, If_None_Match=seen)[0] == 200

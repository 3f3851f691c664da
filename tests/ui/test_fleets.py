"""Pages of runs of many devices, beside the lines that the server wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from prgec.cli.main import main
from prgec.core.machine.folder_lock import FolderLock
from tests.ui.running import RunningUi, error_of

pytest.importorskip("starlette", reason="starlette is not installed")


def _id_of(page: str, name: str) -> str:
    found = re.search(rf'href="/devices/([0-9a-f]{{16}})">{name}<', page)
    assert found is not None, page
    return found[1]


@pytest.fixture
def root(tiny_pte: Path, train_jsonl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    flags = ["--rounds", "3", "--devices", "3", "--local-steps", "2", "--lr", "0.05", "--eval-data", str(train_jsonl)]
    out = tmp_path / "runs" / "fleet"
    assert main(["federate", "simulate", str(tiny_pte), "--data", str(train_jsonl), *flags, "--out", str(out)]) == 0
    capsys.readouterr()
    return tmp_path / "runs"


def test_a_run_of_many_devices_is_shown(root: Path) -> None:
    lines = [json.loads(line) for line in (root / "fleet" / "rounds.jsonl").read_text().splitlines()]
    with RunningUi(root) as ui:
        listed = ui.get("/devices")
        assert "3 of 3" in listed and "complete" in listed
        page = ui.get(f"/devices/{_id_of(listed, 'fleet')}")
        for line in lines[1:]:
            assert f'<td class="number">{line["accuracy"]:.1%}</td>' in page
        assert "3 of 3 rounds" in page and "3 devices" in page and page.count("<svg") == 3
        for number in range(3):
            row = re.search(rf'<th scope="row">device-{number}</th><td class="number">(\d)</td>', page)
            assert row is not None and row[1] == "3"
        # It is not a run of its own, and neither are its devices.
        assert "fleet" not in ui.get("/")


def test_a_run_under_way_and_one_cut_off(root: Path) -> None:
    path = root / "fleet" / "rounds.jsonl"
    path.write_text("".join(f"{line}\n" for line in path.read_text().splitlines()[:3]) + '{"round": 3, "dev')
    with RunningUi(root) as ui:
        name = _id_of(ui.get("/devices"), "fleet")
        assert "cut off" in ui.get(f"/devices/{name}/live") and "2 of 3 rounds" in ui.get(f"/devices/{name}/live")
        with FolderLock(root / "fleet"):
            assert 'data-status="under way"' in ui.get(f"/devices/{name}/live")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rounds.jsonl", "nothing\n"),
        ("rounds.jsonl", "[]\n"),
        ("rounds.jsonl", '{"round": "x"}\n'),
        (
            "rounds.jsonl",
            '{"round": 1, "asked": 1, "devices": ["<b>bold</b>"], "refused": {"1": "<script>"}, "up_bytes": 1, '
            '"down_bytes": 1, "seconds": 1, "loss": null, "accuracy": null}\n',
        ),
        ("rounds.jsonl", '{"round": 1, "devices": 7}\n'),
        ("rounds.jsonl", '{"round": 1, "loss": "x", "up_bytes": "y", "refused": 3}\n{"round": 2}\n'),
        ("fleet.json", "nothing"),
        ("fleet.json", "[]"),
    ],
)
def test_damaged_files_are_a_page_and_no_markup(root: Path, name: str, text: str) -> None:
    (root / "fleet" / name).write_text(text)
    with RunningUi(root) as ui:
        listed = ui.get("/devices")
        page = ui.get(f"/devices/{_id_of(listed, 'fleet')}")
        assert "<b>bold" not in page and "<script>" not in page.replace('<script src="/ui.js" defer></script>', "")


def test_others_are_not_found(root: Path) -> None:
    with RunningUi(root) as ui:
        status, page, _ = ui.request("GET", "/devices/0123456789abcdef")
        assert status == 404 and "no such run of many devices" in error_of(page)

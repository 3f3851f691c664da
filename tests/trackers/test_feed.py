"""A tracker that fails, hangs or lags warns once, and neither stops nor slows the run."""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from prgec.errors import UsageError
from prgec.runtime.trackers import feed as feed_module
from prgec.runtime.trackers.feed import Feeds
from prgec.runtime.trackers.sink import TrackedRun, scalars
from prgec.runtime.trackers.table import TRACKERS, check_trackers

RUN = TrackedRun(Path("runs/one"), {"lr": 0.1})


class Listening:
    """Keeps the lines that it receives; fails or hangs at a given one."""

    def __init__(self, fails_in: str = "", hangs_in: str = "") -> None:
        self.fails_in, self.hangs_in = fails_in, hangs_in
        self.heard: list[str] = []
        self.lines: list[Mapping[str, Any]] = []
        self.summary: Mapping[str, Any] = {}
        self.free = threading.Event()

    def begin(self, run: TrackedRun) -> None:
        self._hear("begin")

    def log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._hear("log")
        self.lines += lines

    def end(self, summary: Mapping[str, Any]) -> None:
        self._hear("end")
        self.summary = summary

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        if what == self.fails_in:
            raise SystemExit("the server is gone\nfor good")
        if what == self.hangs_in:
            self.free.wait(30)


def test_everything_is_reported_in_order() -> None:
    sink = Listening()
    with Feeds({"listening": sink}, RUN) as feeds:
        for step in range(1, 2001):
            feeds.write({"step": step, "loss": 1.0})
        feeds.summary = {"steps": 2000}
    assert [line["step"] for line in sink.lines] == list(range(1, 2001))
    assert (sink.heard[0], sink.heard[-1], sink.summary) == ("begin", "end", {"steps": 2000})


@pytest.mark.parametrize("where", ["begin", "log", "end"])
def test_one_that_fails_warns_once(where: str, caplog: pytest.LogCaptureFixture) -> None:
    failing, other = Listening(fails_in=where), Listening()
    with caplog.at_level(logging.WARNING), Feeds({"failing": failing, "other": other}, RUN) as feeds:
        for step in range(1, 4):
            feeds.write({"step": step})
    assert [record.message for record in caplog.records] == [
        "failing failed: SystemExit: the server is gone for good; the run goes on, and its folder has everything"
    ]
    assert len(other.lines) == 3


def test_one_that_hangs_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    sink = Listening(hangs_in="log")
    began = time.monotonic()
    with caplog.at_level(logging.WARNING), Feeds({"hanging": sink}, RUN, patience_s=0.2) as feeds:
        for step in range(10_000):
            feeds.write({"step": step})
        assert time.monotonic() - began < 5
    sink.free.set()
    assert time.monotonic() - began < 10
    assert ["did not finish in time" in record.message for record in caplog.records] == [True]


def test_all_that_hang_share_their_time_and_an_abort_waits_less(caplog: pytest.LogCaptureFixture) -> None:
    hanging = {name: Listening(hangs_in="begin") for name in ("one", "two", "three")}
    began = time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt), Feeds(hanging, RUN):
        raise KeyboardInterrupt
    assert time.monotonic() - began < 5
    assert len(caplog.records) == 3
    for sink in hanging.values():
        sink.free.set()


def test_one_that_lags_costs_no_more_than_so_many_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feed_module, "MOST_WAITING", 10)
    sink = Listening(hangs_in="begin")
    with caplog.at_level(logging.WARNING), Feeds({"lagging": sink}, RUN) as feeds:
        for step in range(50):
            feeds.write({"step": step})
        sink.free.set()
    assert len(sink.lines) == 10
    assert ["is 10 lines late" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"step": 1, "loss": 2.0, "lr": 0.1, "g": [3.0, -4.0]}, {"loss": 2.0, "lr": 0.1, "g": 12.5**0.5}),
        ({"step": 1, "loss": None, "lr": 0.1, "g": [], "limited": "skipped"}, {"lr": 0.1}),
        ({"step": 1, "loss": float("nan"), "lr": 0.1}, {"lr": 0.1}),
    ],
)
def test_curves_of_a_step(line: dict[str, Any], expected: dict[str, float]) -> None:
    assert scalars(line) == pytest.approx({f"train/{name}": value for name, value in expected.items()})


def test_curves_of_an_evaluation() -> None:
    assert scalars({"step": 5, "eval_loss": 0.5, "eval_accuracy": None}) == {"eval/loss": 0.5}


def test_what_is_not_installed_is_reported_before_anything_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in TRACKERS:
        with pytest.raises(UsageError, match=f"--log-to {name} needs {name}. Hint: pip install '"):
            check_trackers([name])


def test_a_name_that_is_none() -> None:
    with pytest.raises(UsageError, match="there is no tracker 'notebook'"):
        check_trackers(["notebook"])

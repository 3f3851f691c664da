"""Which slow tests run today, and how long tests took: a plug-in of pytest.

`tests/durations.txt` holds the seconds of every test that took over half a second. Those are slow, as if they were
marked so. A test that took over 20 s there and is not marked in its file fails. Write the file again on an idle
machine; every test that has no marker of its own runs then:

    PYTEST_FLAGS="--save-durations tests/durations.txt" .ci/run test
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

SLOW_SECONDS = 20.0
# All shorter ones together take about five minutes of two processors.
DEFAULT_SECONDS = 0.5
# pytest-xdist appends the group that a test is in.
_GROUP = re.compile(r"@[\w./-]+$")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the slow tests be run a part at a time, and durations be kept."""
    parser.addoption("--slice", metavar="K/N", help="of the slow tests, every N-th from the K-th on (from 0)")
    parser.addoption("--save-durations", metavar="FILE", type=Path, help="write the seconds of long tests to a file")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what took long, and choose a slice."""
    if not config.getoption("--save-durations"):
        _mark(config, items)
    if wanted := config.getoption("--slice"):
        _keep_slice(config, items, *map(int, wanted.split("/")))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a test that takes too long to run every time."""
    path = _path_of(item.config)
    seconds = read_durations(path).get(item.nodeid, 0.0)
    if seconds > SLOW_SECONDS and not item.get_closest_marker("slow"):
        pytest.fail(
            f"the test took {seconds:.0f} s ({path.name}): mark it with pytest.mark.slow, or measure it again",
            pytrace=False,
        )


def _path_of(config: pytest.Config) -> Path:
    return config.rootpath / "tests" / "durations.txt"


def _mark(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that are too long to run every time, and short enough to need no marker of their own."""
    durations = read_durations(_path_of(config))
    for item in items:
        if DEFAULT_SECONDS < durations.get(item.nodeid, 0.0) <= SLOW_SECONDS:
            item.add_marker("slow")


def _keep_slice(config: pytest.Config, items: list[pytest.Item], first: int, step: int) -> None:
    """Deselect the other slow tests; neighbours, which take about the same time, go to different slices."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    kept = {item.nodeid for item in slow[first % step :: step]}
    config.hook.pytest_deselected(items=[item for item in slow if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept or not item.get_closest_marker("slow")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the seconds of the tests that ran into the file that was named; others keep theirs."""
    path = config.getoption("--save-durations")
    if path is None:
        return
    ran: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            # A module's fixture is made by whichever test comes first, so it counts for none.
            if isinstance(report, pytest.TestReport) and report.when == "call":
                ran[_GROUP.sub("", report.nodeid)] = report.duration
    kept = {test: seconds for test, seconds in read_durations(path).items() if test not in ran}
    lasting = {test: seconds for test, seconds in ran.items() if seconds > DEFAULT_SECONDS}
    lines = [f"{seconds:.1f}\t{test}\n" for test, seconds in sorted({**kept, **lasting}.items())]
    path.write_text("".join(lines), encoding="utf-8")


@functools.cache
def read_durations(path: Path) -> dict[str, float]:
    """Return the seconds of tests by their names; none where there is no file."""
    if not path.exists():
        return {}
    rows = (line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return {test: float(seconds) for seconds, test in rows}

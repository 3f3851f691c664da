"""Pages about runs of many devices: the list, and one run with its rounds and devices as they come."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from prgec.core.formats.fleet_folder import FLEET_NAME, planned_rounds, read_rounds
from prgec.core.machine.folder_lock import holder
from prgec.errors import PrgecError
from prgec.runtime.report.chart import draw
from prgec.runtime.report.curves import Chart, Curve, accuracy_chart
from prgec.serve.ui.page_request import PageRequest, fragment
from prgec.serve.ui.run_list import CUT_OFF, UNDER_WAY, folders_below
from prgec.serve.ui.state import State
from prgec.serve.ui.view import page
from prgec.serve.web.refusal import HttpError

# Rounds and devices that a table has rows for.
_SHOWN = 50


@dataclass(frozen=True, kw_only=True)
class ListedFleet:
    """A run of many devices as a list shows it.

    Attributes:
        id: Its id in requests.
        name: Its place below the folder of runs.
        rounds: Lines of its rounds.
        planned: Rounds it will have.
        process: Process that is writing to it; None for none.
        remark: Remark on anything odd about it.
    """

    id: str
    name: str
    rounds: Sequence[Mapping[str, Any]]
    planned: int
    process: int | None
    remark: str

    @property
    def done(self) -> int:
        """Rounds that are merged."""
        return max((line["round"] for line in self.rounds), default=0)

    @property
    def status(self) -> str:
        """Its state, in words."""
        if self.process is not None:
            return UNDER_WAY
        return "complete" if self.planned and self.done >= self.planned else CUT_OFF

    @property
    def last(self) -> Mapping[str, Any]:
        """The last line with a score; empty where there is none."""
        return next((line for line in reversed(self.rounds) if line.get("loss") is not None), {})

    @property
    def devices(self) -> list[tuple[str, int, int]]:
        """Name, rounds taken part in and the last of them, of every device; the busiest first."""
        last = {str(name): line["round"] for line in self.rounds for name in line["devices"]}
        counts = Counter(str(name) for line in self.rounds for name in line["devices"])
        return [(name, count, last[name]) for name, count in counts.most_common(_SHOWN)]

    @property
    def recent(self) -> list[Mapping[str, Any]]:
        """The last rounds, the newest first."""
        return [line for line in reversed(self.rounds) if line["round"]][:_SHOWN]


class FleetPages:
    """The pages.

    Args:
        state: State shared by all pages.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def index(self, request: PageRequest) -> Response:
        """The list."""
        del request
        fleets = [self._read(folder) for folder in self._folders()]
        return page("fleets.html.jinja", title="Many devices", fleets=fleets, root=str(self._state.root))

    def fleet(self, request: PageRequest) -> Response:
        """One run."""
        fleet = self._find(request.ids["fleet"])
        return page("fleet.html.jinja", title=fleet.name, fleet=fleet, figures=_figures(fleet))

    def fleet_live(self, request: PageRequest) -> Response:
        """The part of a run's page that changes while it goes."""
        fleet = self._find(request.ids["fleet"])
        shown = (len(fleet.rounds), fleet.status, fleet.process)
        is_done = fleet.process is None
        return fragment("fleet_live.html.jinja", request, shown, is_done=is_done, fleet=fleet, figures=_figures(fleet))

    def _folders(self) -> list[Path]:
        return sorted(folders_below(self._state.root, {FLEET_NAME}))

    def _find(self, name: str) -> ListedFleet:
        for folder in self._folders():
            if self._state.run_list.id_of(folder) == name:
                return self._read(folder)
        raise HttpError(404, "there is no such run of many devices")

    def _read(self, folder: Path) -> ListedFleet:
        remark, rounds, planned = "", [], 0
        try:
            rounds, planned = read_rounds(folder), planned_rounds(folder)
        except PrgecError as error:
            remark = error.what
        return ListedFleet(
            id=self._state.run_list.id_of(folder),
            name=str(folder.relative_to(self._state.root)),
            rounds=rounds,
            planned=planned,
            process=holder(folder),
            remark=remark,
        )


def _figures(fleet: ListedFleet) -> list[Markup]:
    scores = [
        (line["round"], line["loss"], line.get("accuracy")) for line in fleet.rounds if line.get("loss") is not None
    ]
    merged = [line for line in fleet.rounds if line["round"]]
    rounds = [0, *(line["round"] for line in merged)]
    # Sums from 0 on: rounds of one method differ too little for an axis of their own.
    sent, received = (
        [0.0, *itertools.accumulate(line[name] / 1e6 for line in merged)] for name in ("up_bytes", "down_bytes")
    )
    loss = Curve("evaluation", [score[0] for score in scores], [score[1] for score in scores], "two", dots=True)
    charts = [
        Chart("Loss by round", (loss,)),
        accuracy_chart(scores),
        Chart(
            "MB so far", (Curve("from devices", rounds, sent, "one"), Curve("to devices", rounds, received, "three"))
        ),
    ]
    return [draw(chart) for chart in charts if chart is not None and all(len(line.xs) > 1 for line in chart.lines)]

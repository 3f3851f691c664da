"""One self-contained HTML page about a side network: what every epoch of its fit measured, and what it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from prgec.core.formats.side_network import SideNetwork, read_network
from prgec.errors import DataError
from prgec.runtime.report.chart import draw
from prgec.runtime.report.curves import Chart, Curve
from prgec.runtime.report.page import Card
from prgec.runtime.report.templates import read, render

_MEASURED = {"number", "loss", "held_out", "explained", "seconds"}


def side_page(path: Path) -> str:
    """Return the page of a network that `prgec side fit` wrote, with the `.jsonl` beside it.

    Raises:
        DataError: If there is no network, or what its epochs measured is missing or damaged.
    """
    network = read_network(path)
    epochs = _epochs(path.with_name(f"{path.name}.jsonl"))
    best = min(epochs, key=_score)
    shape = network.shape
    return render(
        "page.html.jinja",
        name=path.stem,
        style=Markup(read("report.css")),
        what=f"side network, {len(epochs)} epochs",
        status="complete",
        cards=list(_cards(epochs, best)),
        figures=[draw(_chart(epochs))],
        samples=[],
        tables=[("Network", _facts(network)), ("Shards", [(k, str(v)) for k, v in vars(shape).items()])],
    )


def _score(epoch: Mapping[str, Any]) -> float:
    return float(epoch["loss"] if epoch["held_out"] is None else epoch["held_out"])


def _epochs(path: Path) -> list[dict[str, Any]]:
    try:
        epochs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not epochs or not all(
            {"number", "loss", "held_out", "explained", "seconds"} <= set(each) for each in epochs
        ):
            raise ValueError("it holds no epochs")
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"cannot read the measurements of epochs: {error}", where=path) from error
    return epochs


def _cards(epochs: Sequence[Mapping[str, Any]], best: Mapping[str, Any]) -> Iterator[Card]:
    if best["explained"] is not None:
        yield Card("explained", f"{best['explained']:.1%}", "of held-out squared differences", is_main=True)
        yield Card("held-out error", f"{best['held_out']:.4f}", "mean squared")
    yield Card("error", f"{best['loss']:.4f}", "mean squared, as it was learnt")
    yield Card("kept", f"epoch {best['number']}", f"of {len(epochs)}")
    yield Card("time", f"{sum(each['seconds'] for each in epochs):.1f} s")


def _chart(epochs: Sequence[Mapping[str, Any]]) -> Chart:
    numbers = [each["number"] for each in epochs]
    lines = [Curve("learnt from", numbers, [each["loss"] for each in epochs], "one")]
    if all(each["held_out"] is not None for each in epochs):
        lines.append(Curve("held out", numbers, [each["held_out"] for each in epochs], "two", True))
    return Chart("Mean squared error by epoch", tuple(lines), is_wide=True)


def _facts(network: SideNetwork) -> list[tuple[str, str]]:
    count = sum(array.size for array in network.weights.values())
    return [("rank", str(network.rank)), ("norm", network.norm), ("weights", f"{count:,}"), ("sha256", network.sha256)]

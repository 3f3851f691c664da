"""How long a step takes, by what the reports, a benchmark or a calibration say of a machine."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prgec.compiler.plan.costs import Costs, counts_of
from prgec.compiler.plan.options import CALIBRATED, METHODS
from prgec.compiler.plan.shape import ModelShape
from prgec.compiler.plan.workload import Workload
from prgec.core.contract.names import CHEAP, LAYERS
from prgec.errors import UsageError

_FLOPS_A_MULTIPLICATION = 2
# docs/reports/tinyllama-8da4w.md: two cores with AVX-512. Int8 products cost the same whatever weights are stored in.
_REPORTED = {"none": 0.41e12, "8da8w": 1.05e12, "8da4w": 1.05e12}
# Variants of `prgec bench` that are programs a plan knows, and their methods.
VARIANTS = {"prgec": "prge", "exact": "exact", "exact-layers": "exact", "shortcut": "shortcut"}


@dataclass(frozen=True)
class Speed:
    """How fast a machine is.

    Attributes:
        costs: By scheme and method; what was not measured is missing.
        origin: Where the figures are from, for people.
    """

    costs: Mapping[tuple[str, str], Costs]
    origin: str

    def step_s(self, shape: ModelShape, work: Workload) -> float | None:
        """Seconds of one step, with kept prefixes in place; None for what was not measured."""
        costs = self.costs.get((work.quantize, work.method))
        return None if costs is None else costs.of(counts_of(shape, work))


def reported_speed(backend: str) -> Speed:
    """The figures of this project's reports; none but for XNNPACK."""
    if backend != CALIBRATED:
        return Speed({}, "")
    origin = "two AVX-512 cores of the reports; --calibrate or --bench bench.json take this machine's"
    return Speed(_of_flops(_REPORTED), origin)


def speed_of_bench(path: Path, shape: ModelShape) -> Speed:
    """Return what `prgec bench` measured on this model.

    Raises:
        UsageError: If the file is not a benchmark, or of another model.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        layers = int(document["machine"]["num_layers"])
        rates: dict[str, list[float]] = {}
        for row in document["rows"]:
            if row["variant"] in VARIANTS and row["backend"] == CALIBRATED:
                flops = _step_flops(replace(shape, layers=layers), work_of_row(row))
                rates.setdefault(row["quantize"], []).append(flops / float(row["step_s"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"cannot use the benchmark: {error!r}", where=path, hint="prgec bench writes one") from error
    if not rates:
        raise UsageError("the benchmark has no row of a training program on XNNPACK", where=path)
    return Speed(_of_flops({scheme: statistics.median(each) for scheme, each in rates.items()}), str(path))


def work_of_row(row: Mapping[str, Any]) -> Workload:
    """Return how the program of a row of `bench.json` trains."""
    layers = str(row["layers"])
    return Workload(
        method=VARIANTS[str(row["variant"])],
        quantize=str(row["quantize"]),
        layers=layers,
        q=int(row["q"]),
        batch_size=int(row["B"]),
        seq_len=int(row["T"]),
        prefix="none" if layers == "all" or row["variant"] != "prgec" else "shared",
        recompute=LAYERS if row["variant"] == "exact-layers" else CHEAP,
    )


def _of_flops(rates: Mapping[str, float]) -> dict[tuple[str, str], Costs]:
    """Costs of a machine of which only operations a second are known, by scheme."""
    seconds = {scheme: _FLOPS_A_MULTIPLICATION / rate for scheme, rate in rates.items()}
    return {(scheme, method): Costs(each, each) for scheme, each in seconds.items() for method in METHODS}


def _step_flops(shape: ModelShape, work: Workload) -> float:
    """Floating-point and int8 operations of one step."""
    counts = counts_of(shape, work)
    return _FLOPS_A_MULTIPLICATION * (counts.product + counts.product_f32)

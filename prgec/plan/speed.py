"""How long a step takes: its multiplications over what a machine does a second, by scheme."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prgec.errors import UsageError
from prgec.plan.options import CALIBRATED
from prgec.plan.shape import ModelShape
from prgec.plan.step import prefix_sizes, step_sizes
from prgec.plan.workload import Workload

_FLOPS_A_MULTIPLICATION = 2
# docs/reports/tinyllama-8da4w.md: two cores with AVX-512. Int8 products cost the same whatever weights are stored in.
_REPORTED = {"none": 0.41e12, "8da8w": 1.05e12, "8da4w": 1.05e12}
# Variants of `prgec bench` that are programs a plan knows, and their methods.
VARIANTS = {"prgec": "prge", "exact": "exact", "shortcut": "shortcut"}


@dataclass(frozen=True)
class Speed:
    """What a machine computes.

    Attributes:
        flops: Operations a second, by scheme; a scheme that was not measured is missing.
        origin: Where the figures are from, for people.
    """

    flops: Mapping[str, float]
    origin: str

    def step_s(self, shape: ModelShape, work: Workload) -> float | None:
        """Seconds of one step, with kept prefixes in place; None for a scheme that was not measured."""
        rate = self.flops.get(work.quantize)
        return None if rate is None else step_flops(shape, work) / rate


def step_flops(shape: ModelShape, work: Workload) -> float:
    """Floating-point and int8 operations of one step; what is kept is not computed again."""
    sizes = step_sizes(shape, work)
    products = sizes.multiplies + sizes.multiplies_f32
    if work.prefix != "method":
        prefix = prefix_sizes(shape, work)
        products += prefix.multiplies + prefix.multiplies_f32
    return _FLOPS_A_MULTIPLICATION * products


def reported_speed(backend: str) -> Speed:
    """The figures of this project's reports; none but for XNNPACK."""
    if backend != CALIBRATED:
        return Speed({}, "")
    return Speed(_REPORTED, "two AVX-512 cores of the reports; --bench bench.json takes this machine's")


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
                flops = step_flops(replace(shape, layers=layers), work_of_row(row))
                rates.setdefault(row["quantize"], []).append(flops / float(row["step_s"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"cannot use the benchmark: {error!r}", where=path, hint="prgec bench writes one") from error
    if not rates:
        raise UsageError("the benchmark has no row of a training program on XNNPACK", where=path)
    return Speed({scheme: statistics.median(each) for scheme, each in rates.items()}, str(path))


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
    )

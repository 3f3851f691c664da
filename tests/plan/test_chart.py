"""The picture of memory against context length."""

from __future__ import annotations

from pathlib import Path

import pytest

from prgec.plan.chart import curves, plot_plan
from prgec.plan.memory import memory_of
from prgec.plan.options import PlanOptions
from prgec.plan.plan import Plan, make_plan
from prgec.plan.source import read_shape
from prgec.plan.speed import reported_speed


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(read_shape("TinyLlama-1.1B"), PlanOptions(4 * 10**9), reported_speed("xnnpack"), "m")


def test_every_way_has_a_curve_that_rises(plan: Plan) -> None:
    found = curves(plan)
    assert len(found) == 9
    for points in found.values():
        assert [length for length, _ in points] == [64 << power for power in range(10)]
        assert [size for _, size in points] == sorted(size for _, size in points)


def test_the_curve_of_the_choice_goes_through_what_was_planned(plan: Plan) -> None:
    work = plan.choice.row.work
    points = dict(curves(plan)[f"prgec {work.method}, {work.quantize}"])
    assert points[plan.options.seq_len] == memory_of(plan.shape, work).total


def test_a_picture(plan: Plan, tmp_path: Path) -> None:
    plot_plan(tmp_path / "plan.png", plan)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")

"""Planned figures stand beside measured ones."""

from __future__ import annotations

from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.plan.memory import memory_of
from prgec.compiler.plan.source import read_shape
from prgec.compiler.plan.workload import Workload
from prgec.lab.bench.against_plan import against_plan, planned_anon_bytes
from prgec.lab.bench.options import Cell
from prgec.lab.bench.result import BenchResult, CellResult, Row
from prgec.lab.bench.variants import VARIANTS

CELL = Cell("none", 2, 4, 64)
DEMO = find_checkpoint("demo")


def test_a_variant_is_planned_as_prgec_compile_makes_it() -> None:
    shape = read_shape("demo")
    prge = Workload(q=2, batch_size=4, seq_len=64)
    assert planned_anon_bytes(VARIANTS["prgec"], CELL, ("all",), DEMO, "xnnpack") == (
        memory_of(shape, prge, driver="bench").total
    )
    last = Workload("exact", layers="last:2", batch_size=4, seq_len=64)
    assert planned_anon_bytes(VARIANTS["exact"], CELL, ("last:2",), DEMO, "xnnpack") == (
        memory_of(shape, last, driver="bench").total
    )


def test_what_is_not_planned_is_0() -> None:
    assert planned_anon_bytes(VARIANTS["paper"], CELL, ("all",), DEMO, "xnnpack") == 0
    assert planned_anon_bytes(VARIANTS["prgec"], CELL, ("all",), DEMO, "portable") == 0
    assert planned_anon_bytes(VARIANTS["prgec"], CELL, ("0", "2-3"), DEMO, "xnnpack") == 0


def test_the_table() -> None:
    rows = tuple(
        Row(name, "xnnpack", "none", 2, 4, 64, "all", 1.0, 200_000_000, 300_000_000, planned, 1, 1.0, 1)
        for name, planned in (("prgec", 190_000_000), ("paper", 0))
    )
    lines = list(against_plan(BenchResult((CellResult(CELL, rows, ()),), {})))
    assert lines[2:] == [
        "| none q=2 B=4 T=64 | prgec | 200.0 | 190.0 | -5.0% |",
        "| none q=2 B=4 T=64 | paper | 200.0 | - | not planned |",
    ]

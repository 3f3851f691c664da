"""Order, records and dumps of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from prgec.errors import PassError, UsageError
from prgec.passes.infra import Pass, PassResult
from prgec.passes.pipeline import check_order, dump_to, run_pipeline
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from prgec.passes.record import PassRecord, Refusal
from prgec.passes.rewrite import Rewriter
from tests.passes.builder import GraphBuilder
from tests.passes.golden import expect

aten = torch.ops.aten


@dataclass(frozen=True)
class First(Pass):
    """Turns neg into abs; refuses whatever is called relu."""

    name: ClassVar[str] = "first"

    def run(self, program: GraphProgram) -> PassResult:
        rewriter = Rewriter(program, self.name)
        nodes = list(program.calls(aten.neg.default))
        for node in nodes:
            with rewriter.before(node):
                rewriter.replace(node, rewriter.call(aten.abs.default, node.args[0]))
        refusals = tuple(Refusal(str(node.target), "is no neg") for node in program.calls(aten.relu.default))
        return PassResult(program, bool(nodes), len(nodes), refusals)


@dataclass(frozen=True)
class Second(First):
    name: ClassVar[str] = "second"
    after: ClassVar[frozenset[str]] = frozenset({"first", "zeroth"})

    strength: int = 1


@dataclass(frozen=True)
class Third(First):
    name: ClassVar[str] = "third"
    after: ClassVar[frozenset[str]] = frozenset({"second", "first"})


@dataclass(frozen=True)
class Broken(First):
    name: ClassVar[str] = "broken"

    def run(self, program: GraphProgram) -> PassResult:
        raise ZeroDivisionError("division by zero")


def _program() -> GraphProgram:
    b = GraphBuilder()
    return b.done(b.call(aten.relu.default, b.call(aten.neg.default, b.hidden())))


def test_order_violations_are_reported_all_at_once() -> None:
    with pytest.raises(UsageError) as error:
        check_order([Third(), Second(), First()])
    assert str(error.value) == (
        "the passes are in the wrong order: third must come after first; third must come after second; "
        "second must come after first"
    )


def test_order_binds_only_passes_that_are_there() -> None:
    check_order([Second(), Third()])
    check_order([Third()])
    check_order([First(), Second(), Third()])


def test_a_wrong_order_runs_nothing() -> None:
    program = _program()
    before = print_program(program)
    with pytest.raises(UsageError):
        run_pipeline(program, [First(), Third(), Second()])
    assert print_program(program) == before


def test_records_count_ops() -> None:
    seen: list[tuple[int, str]] = []
    records = run_pipeline(_program(), [First(), Second(strength=2)], lambda n, each, p, r: seen.append((n, each.name)))
    assert seen == [(1, "first"), (2, "second")]
    assert [record.summary() for record in records] == [
        "first: 1 hits, aten.abs: 0 -> 1 (+1), aten.neg: 1 -> 0 (-1)",
        "second{strength=2}: 0 hits, no change",
    ]
    assert records[0].op_diff == {"aten.abs": (0, 1), "aten.neg": (1, 0)}
    assert [str(refusal) for refusal in records[1].refusals] == ["aten.relu.default: is no neg"]


def test_dead_code_in_the_input_is_nobodys_change() -> None:
    program = _program()
    with Rewriter(program, "test").before(program.graph.output_node()) as rewriter:
        rewriter.call(aten.neg.default, program.placeholders()[0])
    records = run_pipeline(program, [First(), Second()])
    assert [record.summary() for record in records] == [
        "first: 1 hits, aten.abs: 0 -> 1 (+1), aten.neg: 1 -> 0 (-1)",
        "second: 0 hits, no change",
    ]


def test_a_callback_that_edits_nodes_is_no_change_of_the_next_pass() -> None:
    def callback(number: int, each: Pass, program: GraphProgram, record: PassRecord) -> None:
        (node,) = program.calls(aten.relu.default)
        with Rewriter(program, "callback").before(node.next) as rewriter:
            rewriter.redirect(node, rewriter.call(aten.abs.default, node))

    with pytest.raises(PassError, match="^second: reported changed=False, but the graph says True"):
        run_pipeline(_program(), [First(), Second()], callback)


def test_summary_of_a_change_that_keeps_all_counts() -> None:
    assert PassRecord(text="move", changed=True, hits=2).summary() == "move: 2 hits"


def test_a_failure_stops_the_pipeline() -> None:
    seen: list[str] = []
    with pytest.raises(PassError, match="^broken: failed: division by zero"):
        run_pipeline(_program(), [First(), Broken(), Second()], lambda n, each, p, r: seen.append(each.name))
    assert seen == ["first"]


def test_dump_writes_the_graph_after_each_pass(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    run_pipeline(_program(), [First(), Second(strength=2)], dump_to(folder))
    assert sorted(path.name for path in folder.iterdir()) == ["01-first.txt", "02-second.txt"]
    expect(
        (folder / "01-first.txt").read_text(),
        """\
// first
// first: 1 hits, aten.abs: 0 -> 1 (+1), aten.neg: 1 -> 0 (-1)
// refused aten.relu.default: is no neg
graph(tokens: i64[4, 8], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, 8, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[4, 8, 4] = aten.abs(%0)
  %2: f32[4, 8, 4] = aten.relu(%1)
  return %2
""",
    )
    assert (folder / "02-second.txt").read_text().startswith("// second{strength=2}\n// second{strength=2}: 0 hits")

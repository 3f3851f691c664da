"""Nodes made by a rewriter know their shape, their source line and who made them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import prgec.passes
from prgec.errors import InternalError
from prgec.passes.program import GraphProgram, is_mutation
from prgec.passes.rewrite import RULE_META, Rewriter, erase_dead
from prgec.runtime_ops import library as _registers_prge_ops  # noqa: F401 - torch.ops.prge exists only after it
from tests.passes.builder import GraphBuilder

aten = torch.ops.aten
PASSES_FOLDER = Path(prgec.passes.__file__).parent
# Calls that make, rewire or remove nodes; those of the second row only where the receiver is a graph.
EDITS = {
    *("update_arg", "update_kwarg", "insert_arg", "replace_input_with", "replace_all_uses_with", "erase_node"),
    *("prepend", "node_copy", "graph_copy", "create_node", "call_function", "call_method", "call_module"),
    *("inserting_before", "inserting_after", "eliminate_dead_code", "_replace_input_with", "_update_args_kwargs"),
}
EDITS_OF_GRAPHS = {"placeholder", "output", "get_attr", "append"}
# Node attributes nobody else assigns; a mark in `meta` does not count as an edit, a value does.
FIELDS = {"args", "kwargs", "target", "op"}


def test_new_nodes_inherit_the_source_line_and_name_their_rule() -> None:
    b = GraphBuilder(dynamic=True)
    hidden = b.hidden()
    hidden.meta["stack_trace"] = "line 3"
    rewriter = Rewriter(b.program, "rule-7")
    with rewriter.before(hidden):
        tripled = rewriter.call(aten.cat.default, [b.tokens] * 3, 1)
    assert tripled.next is hidden
    assert (tripled.meta["stack_trace"], tripled.meta[RULE_META]) == ("line 3", "rule-7")
    assert tripled.meta["val"].shape[1].node.expr == 3 * b.tokens.meta["val"].shape[1].node.expr


def test_set_arg_recomputes_the_value() -> None:
    b = GraphBuilder()
    node = b.call(aten.unsqueeze.default, b.hidden(), 0)
    Rewriter(b.program, "test").set_arg(node, 1, -1)
    assert tuple(node.meta["val"].shape) == (4, 8, 4, 1)


def test_constants_never_share_a_name() -> None:
    """Not even with one that an earlier rewriter made and somebody erased."""
    b = GraphBuilder()
    output = b.program.graph.output_node()
    names = []
    for _ in range(2):
        rewriter = Rewriter(b.program, "test")
        with rewriter.before(output):
            names += [str(rewriter.folded(torch.zeros(i + 1)).target) for i in range(2)]
        b.program.finish()
    assert names == ["folded.c0", "folded.c1", "folded.c2", "folded.c3"]


def test_a_constant_never_replaces_another() -> None:
    b = GraphBuilder()
    rewriter = Rewriter(b.program, "rule-7")
    with rewriter.before(b.program.graph.output_node()):
        rewriter.constant("a.b", torch.ones(2))
        rewriter.constant("a.b", torch.ones(2))
        with pytest.raises(InternalError, match=r"rule-7 stores a second tensor as a\.b"):
            rewriter.constant("a.b", torch.zeros(2))


def test_erase_dead_spares_mutations_and_what_they_read() -> None:
    b = GraphBuilder()
    b.call(aten.abs.default, b.call(aten.neg.default, b.tokens))
    b.call(aten.copy_.default, b.weight("state", 4), b.call(aten.neg.default, b.weight("w", 4)))
    program = b.program
    assert erase_dead(program) == 2
    assert [node.name for node in program.graph.nodes if is_mutation(node)] == ["copy__default"]


def test_finish_removes_checks_and_tensors_nobody_reads() -> None:
    """A check has no readers; what it would catch at run time, shapes say at compile time."""
    b = GraphBuilder()
    hidden = b.hidden()
    b.call(aten._assert_tensor_metadata.default, hidden, None, None, torch.float32)
    b.call(aten.neg.default, b.weight("layer.unused", 4))
    program = b.done(hidden)
    assert [str(node.target) for node in program.graph.nodes if node.op == "call_function"] == [
        "aten.embedding.default"
    ]
    assert [name for name, _ in program.module.named_buffers()] == ["embed.weight"]


def test_state_names_come_in_order_of_first_use() -> None:
    b = GraphBuilder()
    values = [b.weight(name, 4) for name in ("z", "a", "frozen")]
    for value in (values[1], values[0]):
        b.call(aten.copy_.default, value, values[2])
    program: GraphProgram = b.done(*values)
    assert program.state_names() == ["z", "a"]


def test_state_is_all_that_a_call_writes_to() -> None:
    b = GraphBuilder()
    names = ("master", "mean", "square", "gradient", "factors")
    master, mean, square, gradient, factors = (b.weight(name, 4) for name in names)
    lr = b.input("lr", torch.zeros(()))
    b.call(torch.ops.prge.adamw_update.default, master, mean, square, gradient, lr, factors, 0.9, 0.99, 1e-8, 0.0)
    program = b.done(master)
    assert program.state_names() == ["master", "mean", "square"]


def edits_of(source: str) -> list[str]:
    """Lines of a file that edit a graph by hand."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = _last_name(node.func)
            receiver = _last_name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            is_edit = name in EDITS or name == "Graph" or (name in EDITS_OF_GRAPHS and receiver == "graph")
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            is_edit = node.attr in FIELDS
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            is_edit = _last_name(node.value) == "meta" and isinstance(node.slice, ast.Constant)
        else:
            continue
        if is_edit:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# program.py unlifts a graph before any pass sees it, and cleans it after each; lift.py writes a graph of its own.
@pytest.mark.parametrize(
    "name", sorted({path.stem for path in PASSES_FOLDER.glob("*.py")} - {"rewrite", "program", "lift"})
)
def test_only_the_rewriter_edits_graphs(name: str) -> None:
    assert edits_of((PASSES_FOLDER / f"{name}.py").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "node.update_arg(1, x)",
        "node.replace_all_uses_with(new)",
        "program.graph.erase_node(node)",
        "graph.output(())",
        "program.graph.get_attr(name)",
        "anchor.prepend(node)",
        "graph = torch.fx.Graph()",
        "end.args = (x,)",
        "node.meta['val'] = value",
    ],
)
def test_every_way_to_edit_a_graph_is_seen(line: str) -> None:
    assert len(edits_of(f"def f():\n    {line}\n")) == 1

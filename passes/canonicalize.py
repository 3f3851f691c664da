"""Remove what computes nothing: no-op casts and views, and sizes a view can infer.

Before:
    %0: size = aten.sym_size.int(tokens, 1)
    %1: f32[8, T, 64] = aten.to.dtype(%h, f32)
    %2: f32[8, T, 64] = aten.alias(%1)
    %3: f32[8, T, 4, 16] = aten.view(%2, [8, %0, -1, 16])
After:
    %0: f32[8, T, 4, 16] = aten.view(%h, [8, -1, 4, 16])

Requires: nothing. Ensures: no casts to the same dtype. Run-time checks have no readers and go with the dead code.
Numerics: EXACT.
Why: a leftover `alias` or full slice stays outside a delegate and splits it in two, and a view that reads a
size drags size arithmetic along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch.fx import Node
from torch.fx.node import Argument

from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier, rewrite_matches
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter, erase_dead
from prgec.passes.shapes import dtype_of, dynamic_dims, is_same_shape, is_tensor, shape_of, view_sizes

aten = torch.ops.aten

# Ops that return their first argument unchanged whenever shape and dtype stay the same.
_IDENTITY_OPS: frozenset[Callable[..., Any]] = frozenset(
    {
        aten.alias.default,
        aten.detach.default,
        aten.detach_.default,
        aten.lift_fresh_copy.default,
        aten.to.dtype,
        aten.to.dtype_layout,
        aten.to.device,
        aten.to.other,
        aten._to_copy.default,
        aten.type_as.default,
        aten.expand.default,
        aten.slice.Tensor,
        aten.view.default,
        aten.reshape.default,
    }
)
_VIEW_OPS = (aten.view.default, aten.reshape.default)


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Drop no-op casts and views; let views infer their dynamic size."""

    name: ClassVar[str] = "canonicalize"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every place found."""
        found = map(match, list(program.graph.nodes))
        result = rewrite_matches(program, found, partial(_rewrite, Rewriter(program, self.name)))
        hits = result.hits + erase_dead(program)
        return PassResult(program, hits > 0, hits)

    def ensures(self, program: GraphProgram) -> list[str]:
        """No identity is left."""
        return [f"%{node.name} {node.target} is left" for node in program.graph.nodes if is_identity(node)]


@dataclass(frozen=True)
class Simpler:
    """A simpler spelling of a call: another value instead of it, or another argument.

    Attributes:
        node: The call.
        value: The value, or the argument.
        index: Which argument; None where the value replaces the call.
    """

    node: Node
    value: Argument
    index: int | None = None


def match(node: Node) -> Simpler | None:
    """Return the simpler spelling of a call; None where there is none."""
    if is_identity(node):
        return Simpler(node, node.args[0])
    if parts := filled_parts(node):
        return Simpler(node, parts, 0) if len(parts) > 1 else Simpler(node, parts[0])
    sizes = inferred_sizes(node)
    return Simpler(node, sizes, 1) if sizes is not None else None


def _rewrite(rewriter: Rewriter, simpler: Simpler) -> None:
    if simpler.index is not None:
        rewriter.set_arg(simpler.node, simpler.index, simpler.value)
        return
    assert isinstance(simpler.value, Node)
    rewriter.replace(simpler.node, simpler.value)


def is_identity(node: Node) -> bool:
    """Whether a node returns its first argument unchanged."""
    if node.op != "call_function" or not node.args or not is_tensor(node) or not is_tensor(node.args[0]):
        return False
    source = node.args[0]
    assert isinstance(source, Node)
    if node.target is aten.dropout.default:
        return bool(node.args[1] == 0.0 or node.args[2] is False)
    same = dtype_of(node) == dtype_of(source) and is_same_shape(shape_of(node), shape_of(source))
    if node.target is aten.slice.Tensor:
        return same and bool(len(node.args) < 5 or node.args[4] == 1)
    return same and node.target in _IDENTITY_OPS


def filled_parts(node: Node) -> list[Node]:
    """The non-empty parts of a concatenation that also has empty ones; empty for any other node.

    A rotary embedding of the whole head still appends the part it leaves alone.
    """
    if node.op != "call_function" or node.target is not aten.cat.default:
        return []
    parts = [part for part in node.args[0] if isinstance(part, Node)]  # type: ignore[union-attr]
    filled = [part for part in parts if 0 not in [size for size in shape_of(part) if isinstance(size, int)]]
    # An empty part may still widen the dtype of the others.
    keeps_dtype = any(dtype_of(part) == dtype_of(node) for part in filled)
    return filled if len(filled) < len(parts) and keeps_dtype else []


def inferred_sizes(node: Node) -> list[int] | None:
    """Sizes for a view or expand that spells out T although it could infer it; None for any other node."""
    if node.op != "call_function" or node.target not in (*_VIEW_OPS, aten.expand.default):
        return None
    sizes = node.args[1]
    if not any(isinstance(size, Node) for size in sizes):  # type: ignore[union-attr]
        return None
    source = node.args[0]
    assert isinstance(source, Node)
    if node.target is not aten.expand.default:
        return view_sizes(shape_of(node))
    # -1 keeps a dimension; one that is new or grows from 1 to T has to say so.
    if len(dynamic_dims(source)) != len(dynamic_dims(node)):
        return None
    return [size if isinstance(size, int) else -1 for size in shape_of(node)]

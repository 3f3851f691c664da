"""Store the embedding table in 8 or 4 bits.

Before:
    %0: f32[N, T, D] = aten.embedding(@embed.weight, tokens)
After:
    %0: f32[N, T, D] = quantized_decomposed.embedding_4bit(@embed.weight_rows, @embed.weight_rows_scale, -, -8, 7, ...)

Requires: ExecuTorch's quantised kernels. Ensures: nothing.
Numerics: CHANGES (the quantisation error of the table).
Why: the f32 table of TinyLlama is 262 MB, a third of the whole 4-bit program, and only N*T of its rows are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.passes.infra import CHANGES, Pass, PassResult, Role, Tier, describe, rewrite_matches
from prgec.passes.program import TOKENS, GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import shape_of
from prgec.passes.weights import SCHEMES, packed_nibbles, quantized

aten = torch.ops.aten

_BITS = {0: None, 8: SCHEMES["8da8w"], 4: SCHEMES["8da4w"]}


@dataclass(frozen=True)
class QuantizeEmbedding(Pass):
    """Quantise the token embedding.

    Attributes:
        bits: 8, 4, or 0 to leave it in f32.
        group: Columns that share a scale.
    """

    name: ClassVar[str] = "quantize-embedding"
    tier: ClassVar[Tier] = CHANGES
    role: ClassVar[Role] = Role.SHARED
    touches_prefix: ClassVar[bool] = True
    after: ClassVar[frozenset[str]] = frozenset({"canonicalize"})

    bits: int = 0
    group: int = 32

    def requires(self, program: GraphProgram) -> Sequence[str]:
        """The number of bits is one the runtime has a kernel for."""
        del program
        return [] if self.bits in _BITS else [f"bits is {self.bits}; expected 0, 4 or 8"]

    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite every lookup of token ids."""
        if not self.bits:
            return PassResult(program, False)
        import executorch.exir.passes._quant_patterns_and_replacements  # noqa: F401 - registers the ops

        rewriter = Rewriter(program, self.name)
        found = map(self.match, program.calls(aten.embedding.default))
        return rewrite_matches(program, found, partial(self._rewrite, program, rewriter))

    def match(self, node: Node) -> Node | Refusal:
        """Return a lookup to rewrite, or why it stays."""
        table, index = node.args[:2]
        assert isinstance(table, Node) and isinstance(index, Node)
        if table.op != "get_attr" or not _is_token_ids(index):
            return Refusal(describe(node), "it does not look up token ids")
        width = int(shape_of(table)[1])
        if width % self.group:
            return Refusal(describe(node), f"its width {width} is not a multiple of group={self.group}")
        return node

    def _rewrite(self, program: GraphProgram, rewriter: Rewriter, node: Node) -> None:
        table, tokens = node.args[:2]
        assert isinstance(table, Node)
        scheme = _BITS[self.bits]
        assert scheme is not None
        values, scale, _ = quantized(program.attribute(table), scheme, [1, self.group])
        ops = torch.ops.quantized_decomposed
        op = ops.embedding_byte.default if self.bits == 8 else ops.embedding_4bit.default
        # The runtime's kernel reads even columns from the high halves.
        stored = values if self.bits == 8 else packed_nibbles(values, even_is_low=False)
        with rewriter.before(node):
            # Not <table>_scale: that is the head's own, where the table is tied to it.
            data = rewriter.constant(f"{table.target}_rows", stored)
            scales = rewriter.constant(f"{table.target}_rows_scale", scale)
            lookup = rewriter.call(op, data, scales, None, scheme.minimum, scheme.maximum, tokens)
        rewriter.replace(node, lookup)


def _is_token_ids(node: Node) -> bool:
    """Whether a node is the tokens, or (after share-prefix) some rows of them."""
    source = node.args[0] if node.target is aten.slice.Tensor else node
    return isinstance(source, Node) and source.target == TOKENS

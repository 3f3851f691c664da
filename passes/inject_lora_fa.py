"""Give chosen Linear layers a LoRA-FA branch: frozen random A, trainable B that starts at zero.

Before:
    %0: f32[N, T, O] = aten.linear(%x, @site.weight)
After:
    %0: f32[N, T, O] = aten.linear(%x, @site.weight)
    %1: f32[N, T, r] = aten.linear(%x, @site.lora_A)
    %2: f32[N, T, O] = aten.matmul(%1, @site.lora_B)
    %3: f32[N, T, O] = aten.add(%0, %2)

`lora_A` f32[r, D] holds alpha/r times the matrix `prgec.runtime_ops.lora.lora_a` draws; `lora_B` is f32[r, O].
Any shape is a site: O != D (GQA k and v, MLP), with and without bias.

Requires: no site yet. Ensures: every target matched something.
Numerics: EXACT while B is zero.
Why: only B changes, so 2q perturbed copies cost 2q * r * O floats a site, and W and A are read once for all rows. It is
bought for this, not for accuracy: Gao et al., "Enabling Efficient On-Device Fine-Tuning of LLMs Using Only Inference
Engines", appendix B (Table 7), see it a point ahead of LoRA, DoRA and VeRA; docs/reports/study-spaces.md sees it last.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx import Node

from prgec.errors import UsageError
from prgec.passes.infra import EXACT, Pass, PassResult, Role, Tier, rewrite_matches
from prgec.passes.layer_choice import ALL_LAYERS, block_of, chosen
from prgec.passes.program import GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.residual import nearest_linears, residual_writes
from prgec.passes.rewrite import Rewriter
from prgec.passes.shapes import dtype_of, shape_of
from prgec.passes.sites import a_name, b_name, is_a
from prgec.passes.weights import layer_name
from prgec.runtime_ops.lora import lora_a

aten = torch.ops.aten

ALL_LINEAR = "all-linear"
# Output layers are not "all linear" anywhere in the field (PEFT leaves them out too); name them to train them.
_HEAD_NAMES = frozenset({"lm_head", "embed_out", "output_projection", "embed_tokens", "wte", "embed_in"})


@dataclass(frozen=True, kw_only=True)
class InjectLoraFa(Pass):
    """Add the LoRA-FA branch to every Linear that a target names.

    Attributes:
        targets: Last component of module paths (`q_proj`), regular expressions over whole paths, or `all-linear`.
        rank: r.
        alpha: The branch is scaled by alpha / r.
        seed: Seed of the frozen A matrices.
        layers: Blocks to train, in the form `prgec.passes.layer_choice` reads.
        only_writers: In chosen blocks below the last, train only layers that write to the residual stream.
    """

    name: ClassVar[str] = "inject-lora-fa"
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role] = Role.TRAINING
    touches_prefix: ClassVar[bool] = False
    after: ClassVar[frozenset[str]] = frozenset({"canonicalize", "select-label-tokens"})

    targets: tuple[str, ...] = (ALL_LINEAR,)
    rank: int = 16
    alpha: float = 32.0
    seed: int = 0
    layers: tuple[str, ...] = (ALL_LAYERS,)
    only_writers: bool = False

    def requires(self, program: GraphProgram) -> list[str]:
        """The options are sane and the graph has no sites yet."""
        reasons = []
        if self.rank < 1:
            reasons.append(f"rank is {self.rank}; expected at least 1")
        if any(map(is_a, program.graph.nodes)):
            reasons.append("the graph has LoRA-FA sites already")
        return reasons

    def run(self, program: GraphProgram) -> PassResult:
        """Inject every site, in graph order; that order is the site index of the noise."""
        rewriter = Rewriter(program, self.name)
        linears = _linears(program)
        _check_targets(self.targets, list(linears))
        names = chosen([name for name in linears if is_target(name, self.targets)], self.layers)
        if self.only_writers:
            names = _last_and_writers(program, names)
        numbers = itertools.count()
        result = rewrite_matches(
            program,
            (match(name, linears[name]) for name in names),
            lambda node: self._inject(rewriter, layer_name(node), node, next(numbers)),
        )
        if not result.hits:
            raise UsageError("no layer could be made trainable", where="; ".join(map(str, result.refusals)) or None)
        return result

    def _inject(self, rewriter: Rewriter, name: str, node: Node, site: int) -> None:
        source = node.args[0]
        assert isinstance(source, Node)
        in_features, out_features = int(shape_of(source)[-1]), int(shape_of(node)[-1])
        a_RD = lora_a(self.seed, site, self.rank, in_features) * (self.alpha / self.rank)
        successor = node.next
        with rewriter.before(successor):
            low_rank = rewriter.call(aten.linear.default, source, rewriter.constant(a_name(name), a_RD))
            b_RO = rewriter.state(b_name(name), torch.zeros(self.rank, out_features))
            branch = rewriter.call(aten.matmul.default, low_rank, b_RO)
            total = rewriter.call(aten.add.Tensor, node, branch)
        rewriter.redirect(node, total)


def is_target(name: str, targets: tuple[str, ...]) -> bool:
    """Whether one of `targets` names the module path `name`."""
    leaf = name.rpartition(".")[2]
    return any(leaf not in _HEAD_NAMES if t == ALL_LINEAR else leaf == t or re.fullmatch(t, name) for t in targets)


def match(name: str, nodes: list[Node]) -> Node | Refusal:
    """Return the one call of the linear `name`, or why its calls cannot be a site."""
    if len(nodes) > 1:
        return Refusal(name, f"is called {len(nodes)} times; a branch serves one call")
    node = nodes[0]
    source = node.args[0]
    assert isinstance(source, Node)
    if dtype_of(node) != torch.float32 or dtype_of(source) != torch.float32:
        return Refusal(name, f"computes in {dtype_of(node)}; expected f32")
    if len(shape_of(source)) < 2:
        return Refusal(name, f"its input has rank {len(shape_of(source))}; expected rows first")
    return node


def _linears(program: GraphProgram) -> dict[str, list[Node]]:
    """Calls of every linear with a module path, in graph order."""
    linears: dict[str, list[Node]] = {}
    for node in program.calls(aten.linear.default):
        name = layer_name(node)
        if name and _is_layer(node):
            linears.setdefault(name, []).append(node)
    return linears


def _is_layer(node: Node) -> bool:
    """Whether a linear is a layer of its own: routers and experts multiply by a weight of theirs without one.

    PEFT has no adapter for those. A node that a pass made does not say where it comes from, and is a layer.
    """
    modules = list(node.meta.get("nn_module_stack", {}).values())
    return not modules or str(modules[-1][1]).endswith("Linear")


def _last_and_writers(program: GraphProgram, names: list[str]) -> list[str]:
    """Those of `names` that lie in the last of their blocks or in none, or write to the residual stream.

    Raises:
        UsageError: If blocks have no numbers, or no layer below the last block writes to a stream.
    """
    last = max((block for name in names if (block := block_of(name)) is not None), default=None)
    output = program.graph.output_node()
    writers = {layer_name(node) for write in residual_writes(output) for node in nearest_linears(write.written)}
    kept = [name for name in names if block_of(name) in (last, None) or name in writers]
    if last is None or not writers:
        raise UsageError("the model has no residual stream that layers write to", hint="train with method exact")
    return kept


def _check_targets(targets: tuple[str, ...], names: list[str]) -> None:
    leaves = sorted({name.rpartition(".")[2] for name in names})
    for target in targets:
        try:
            matched = any(is_target(name, (target,)) for name in names)
        except re.error as error:
            raise UsageError(f"targets {target!r} is not a regular expression: {error}") from error
        if not matched:
            raise UsageError(f"no Linear layer is called {target!r}", hint=f"this model has: {', '.join(leaves)}")

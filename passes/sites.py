"""Trained layers of a graph: which nodes are a site's A or B, and all sites in the order of their noise index.

A site is a Linear layer with a LoRA-FA branch, `linear(x, A) @ B`. Its module path names it, and a suffix of that
path names its tensors; nobody else asks for suffixes.
"""

from __future__ import annotations

import operator
from typing import TypeGuard

import torch
from torch.fx import Node

from prgec.core.contract.manifest import Site
from prgec.core.contract.names import FROZEN_SUFFIX, STATE_INPUT, STATE_SUFFIX
from prgec.passes.program import GraphProgram

aten = torch.ops.aten


def a_name(site: str) -> str:
    """Attribute that holds the frozen A of the layer at module path `site`."""
    return site + FROZEN_SUFFIX


def b_name(site: str) -> str:
    """Attribute that holds the trained B of the layer at module path `site`."""
    return site + STATE_SUFFIX


def is_a(node: object) -> TypeGuard[Node]:
    """Whether a node reads the A of a site."""
    return _reads(node, FROZEN_SUFFIX)


def is_b(node: object) -> TypeGuard[Node]:
    """Whether a node reads the B of a site."""
    return _reads(node, STATE_SUFFIX)


def site_of(node: object) -> str:
    """Module path of the site whose A or B a node reads; empty for any other node."""
    if is_a(node):
        return str(node.target).removesuffix(FROZEN_SUFFIX)
    return str(node.target).removesuffix(STATE_SUFFIX) if is_b(node) else ""


def sites_of(program: GraphProgram) -> tuple[Site, ...]:
    """Trained layers of a program in the order of their noise index, that is, of their first use."""
    sites: dict[str, Site] = {}
    for node in filter(is_a, program.graph.nodes):
        name = site_of(node)
        if name not in sites:
            in_features, out_features = int(node.meta["val"].shape[-1]), _out_features(program, name, len(sites))
            sites[name] = Site(name, len(sites), in_features, out_features)
    return tuple(sites.values())


def _out_features(program: GraphProgram, site: str, index: int) -> int:
    entry = program.placeholder(state_input(index))
    b = operator.attrgetter(b_name(site))(program.module) if entry is None else entry.meta["val"]
    return int(b.shape[-1])


def state_input(index: int) -> str:
    """Name of the input that stands for the B of a site where the host keeps the state."""
    return STATE_INPUT.format(index)


def state_inputs(program: GraphProgram) -> list[Node]:
    """Inputs that stand for B, in the order of the noise index; none where the program keeps its state."""
    inputs = {node.target: node for node in program.placeholders()}
    found = (inputs.get(state_input(index)) for index in range(len(inputs)))
    return [node for node in found if node is not None]


def b_names(program: GraphProgram) -> list[str]:
    """Attributes that hold the B of a site, in the order of the noise index."""
    return list(dict.fromkeys(str(node.target) for node in filter(is_b, program.graph.nodes)))


def branches(program: GraphProgram) -> list[Node]:
    """Products with a site's B as inject-lora-fa leaves them, in the order of the noise index."""
    return [node for node in program.calls(aten.matmul.default) if is_b(node.args[1])]


def copies(program: GraphProgram) -> list[tuple[Node, Node]]:
    """The 2q copies of each B as dualize leaves them, each with the node that reads B; in order of the noise index."""
    found = []
    for node in program.calls(aten.expand.default):
        source = node.args[0]
        if isinstance(source, Node) and source.target is aten.unsqueeze.default and is_b(source.args[0]):
            found.append((node, source.args[0]))
    return found


def writes(program: GraphProgram) -> list[tuple[Node, Node]]:
    """Each `copy_` to a site's B with the node that reads B, in graph order."""
    return [(node, node.args[0]) for node in program.calls(aten.copy_.default) if is_b(node.args[0])]


def _reads(node: object, suffix: str) -> bool:
    return isinstance(node, Node) and node.op == "get_attr" and str(node.target).endswith(suffix)

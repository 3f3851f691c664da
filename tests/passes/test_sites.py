"""Which nodes are a site's A or B, in every form a site takes on its way through the pipeline."""

from __future__ import annotations

import torch

from prgec.core.contract.manifest import Site
from prgec.passes.dualize import Dualize
from prgec.passes.insert_self_update import InsertSelfUpdate
from prgec.passes.program import GraphProgram
from prgec.passes.sites import a_name, b_name, b_names, branches, copies, site_of, sites_of, writes
from tests.passes.builder import GraphBuilder

aten = torch.ops.aten


def injected() -> GraphProgram:
    """Sites in an order that is not the alphabet's, of different widths, between layers that are not sites."""
    b = GraphBuilder()
    hidden = b.hidden(4)
    plain = b.call(aten.matmul.default, hidden, b.weight("proj.weight", 4, 4))
    first = b.injected_site(plain, "z.v_proj", rank=2, out=3)
    second = b.injected_site(first, "a.q_proj", rank=2, out=5)
    return b.done(second)


def test_sites_come_in_the_order_of_their_first_use() -> None:
    program = injected()
    assert sites_of(program) == (Site("z.v_proj", 0, 4, 3), Site("a.q_proj", 1, 3, 5))
    assert b_names(program) == ["z.v_proj.lora_B", "a.q_proj.lora_B"]


def test_a_node_knows_its_site() -> None:
    program = injected()
    found = {str(node.target): site_of(node) for node in program.graph.find_nodes(op="get_attr")}
    assert found == {
        "embed.weight": "",
        "proj.weight": "",
        a_name("z.v_proj"): "z.v_proj",
        b_name("z.v_proj"): "z.v_proj",
        a_name("a.q_proj"): "a.q_proj",
        b_name("a.q_proj"): "a.q_proj",
    }
    assert site_of("a.q_proj.lora_A") == ""


def test_every_form_of_a_site_is_found_where_it_is_and_nowhere_else() -> None:
    program = injected()
    assert [site_of(node.args[1]) for node in branches(program)] == ["z.v_proj", "a.q_proj"]
    assert copies(program) == [] and writes(program) == []
    Dualize(q=2)(program)
    assert [site_of(b) for _, b in copies(program)] == ["z.v_proj", "a.q_proj"]
    assert branches(program) == [] and writes(program) == []
    InsertSelfUpdate()(program)
    assert [site_of(b) for _, b in writes(program)] == ["z.v_proj", "a.q_proj"]
    assert branches(program) == [] and copies(program) == []
    assert len(sites_of(program)) == 2

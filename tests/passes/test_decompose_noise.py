from __future__ import annotations

import re
from collections import Counter

import pytest
import torch

from prgec.passes.decompose_noise import DecomposeNoise
from prgec.passes.insert_self_update import InsertSelfUpdate
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from prgec.runtime_ops import noise
from tests.passes.builder import GraphBuilder, row_inputs
from tests.passes.golden import expect, run_pass, transcript
from tests.passes.parity import run, set_state, state_of

PASS = DecomposeNoise()
Q, RANK = 2, 3
# Elements of a site's noise are not a multiple of four, so streams are padded between sites.
OUTS = (3, 5, 2)


def example(state: str = "seeded") -> GraphProgram:
    b = GraphBuilder(num_rows=4, dynamic=True)
    hidden = b.hidden()
    sites = [b.dualized_site(hidden, f"site{i}", q=Q, rank=RANK, out=out) for i, out in enumerate(OUTS)]
    program = b.done(*sites)
    run_pass(program, InsertSelfUpdate(state=state))
    return program


@pytest.mark.parametrize(("state", "steps"), [("seeded", 2), ("dual", 1)])
def test_hit(state: str, steps: int) -> None:
    """One stream whatever the number of sites and steps."""
    program = example(state)
    result = run_pass(program, PASS)
    assert result.hits == steps * len(OUTS)
    text = print_program(program)
    assert "prge." not in text
    ops = Counter(re.findall(r"= (aten\.\w+)", text))
    assert ops["aten.sqrt"] == 1
    assert text.count("aten.") < 600


def test_hit_constants_say_which_site_and_block() -> None:
    program = example()
    run_pass(program, PASS)
    sites, blocks = (program.module.get_buffer(f"prge_noise.c0.{name}") for name in ("sites", "blocks"))
    assert sites.tolist() == [0] * 3 + [1] * 4 + [2] * 2
    assert blocks.tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1]


def test_miss_without_noise() -> None:
    b = GraphBuilder(dynamic=True)
    expect(
        transcript(b.done(b.hidden()), PASS),
        """\
graph(tokens: i64[4, T], label_pos: i64[4, 2], targets: i64[4, 2]):
  %0: f32[4, T, 4] = aten.embedding(@embed.weight, tokens)
  return %0
--- decompose-noise: 0 hits
(same)
""",
    )


@pytest.mark.parametrize("seed", [0, -1, 2**40 + 3])
def test_parity_over_steps(seed: int) -> None:
    """The same bits as the op it stands for, over steps and for seeds that need all 64 bits."""
    programs = [example(), example()]
    run_pass(programs[1], PASS)
    rows = row_inputs(GraphBuilder(num_rows=4).done())
    for step, g in enumerate(([0.0, 0.0], [1.5, -0.5], [-2.0, 3.0])):
        scalars = (torch.tensor(g), torch.tensor(0.1), torch.tensor(0.05), torch.tensor(seed), torch.tensor(step))
        results = [run(program, (*rows, *scalars)) for program in programs]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))
        assert all(torch.equal(state_of(programs[1])[name], value) for name, value in state_of(programs[0]).items())


def test_parity_with_the_noise_itself() -> None:
    """Copies of a zero master are plus and minus the noise of (seed, step, site), here through branches of ones."""
    program = example()
    run_pass(program, PASS)
    set_state(program, {f"site{i}.lora_B": torch.zeros(RANK, out) for i, out in enumerate(OUTS)})
    frozen = program.module.get_buffer("site1.lora_A")
    embedding = program.module.get_buffer("embed.weight")
    rows = row_inputs(GraphBuilder(num_rows=4).done())
    scalars = (torch.zeros(Q), torch.tensor(0.0), torch.tensor(1.0), torch.tensor(7), torch.tensor(9))
    z = noise.randn(torch.tensor(7), torch.tensor(9), 1, Q, (RANK, OUTS[1]))
    copies = [sign * z[i] for i in range(Q) for sign in (1.0, -1.0)]
    expected = torch.stack([embedding[row] @ frozen.T @ copy for row, copy in zip(rows[0], copies, strict=True)])
    torch.testing.assert_close(run(program, (*rows, *scalars))[1], expected, rtol=1e-4, atol=1e-5)

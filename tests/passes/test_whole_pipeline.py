"""Whole pipelines: their text against `tests/golden`, their numbers against Algorithm 1 on the Hugging Face model."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from prgec.compiler.frontend.model import LossModel
from prgec.core.contract.names import APPLY_INPUTS, FORWARD_INPUTS
from prgec.passes.extract_apply import extract_apply
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from prgec.runtime_ops import noise
from prgec.runtime_ops.lora import lora_a
from tests.passes.builder import row_inputs
from tests.passes.golden import expect_file
from tests.passes.parity import run, set_state, state_of
from tests.passes.whole import MODEL, OPTIONS, finished

VARIANTS = [("xnnpack", "seeded"), ("portable", "seeded"), ("portable", "dual")]
_PROJECTIONS = ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
SITES = tuple(f"model.layers.0.{name}_proj" for name in _PROJECTIONS)
SEED, LR, EPS = 11, 0.02, 0.01


@pytest.mark.parametrize(("backend", "state"), VARIANTS)
def test_text(backend: str, state: str) -> None:
    done = finished(backend, state)
    passes = [f"// {each}\n" for each in done.pipeline.split(",")]
    refused = [f"// refused {refusal}\n" for record in done.records for refusal in record.refusals]
    apply = print_program(extract_apply(done.program))
    text = "".join([*passes, *refused, print_program(done.program), "\n// apply\n", apply])
    assert not re.search(r"/\w+/|\.py\b", text), "a path of this machine is in the text"
    expect_file(text, f"{backend}-{state}.txt")


@pytest.mark.parametrize(("backend", "state"), VARIANTS)
def test_five_steps_follow_algorithm_1(backend: str, state: str) -> None:
    """Losses of every step, with g fed back, at two lengths."""
    program = finished(backend, state).program
    assert tuple(node.target for node in program.placeholders()) == FORWARD_INPUTS
    _reset(program)
    textbook = Textbook()
    g = torch.zeros(OPTIONS.q)
    for step in range(5):
        rows = _rows(program, step, seq_len=8 if step % 2 else 5)
        expected = textbook.losses(rows, g, step)
        losses = run(program, (*rows, g, *_scalars(step)))[0]
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=0)
        loss_QS = expected.reshape(OPTIONS.q, 2, OPTIONS.batch_size).mean(2)
        g = (loss_QS[:, 0] - loss_QS[:, 1]) / (2 * EPS)
    assert max(float(master.abs().max()) for master in textbook.masters) > 10 * EPS * LR
    _flush(program, g, step=5)
    for site, master in zip(SITES, textbook.updated(g, 5), strict=True):
        held = program.module.get_buffer(f"{site}.lora_B")
        torch.testing.assert_close(held, master.expand(held.shape), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("backend", "state"), VARIANTS)
def test_evaluation_changes_nothing(backend: str, state: str) -> None:
    """After a flush, eps = 0 and g = 0: eight different rows, the losses of the merged model, the same state."""
    program = finished(backend, state).program
    _reset(program)
    g = torch.tensor([1.0, -2.0])
    run(program, (*_rows(program, 0), torch.zeros(2), *_scalars(0)))
    _flush(program, g, step=1)
    textbook = Textbook()
    masters = textbook.updated(g, 1)
    held = state_of(program)
    rows = _rows(program, 9)
    losses = run(
        program, (*rows, torch.zeros(2), torch.tensor(LR), torch.tensor(0.0), torch.tensor(SEED), torch.tensor(1))
    )[0]
    torch.testing.assert_close(losses, textbook.loss(rows, masters), rtol=1e-5, atol=0)
    assert {name: value.tolist() for name, value in state_of(program).items()} == {
        name: value.tolist() for name, value in held.items()
    }


@pytest.mark.parametrize(("backend", "state"), VARIANTS)
def test_apply_leaves_the_bits_the_next_step_would(backend: str, state: str) -> None:
    """The flush before an evaluation and the update at the entry of a step are one computation."""
    program = finished(backend, state).program
    _reset(program)
    run(program, (*_rows(program, 0), torch.zeros(2), *_scalars(0)))
    before, g = state_of(program), torch.tensor([0.5, -1.5])
    scalars = (torch.tensor(LR), torch.tensor(0.0), torch.tensor(SEED), torch.tensor(1))
    run(program, (*_rows(program, 0), g, *scalars))
    stepped = state_of(program)
    set_state(program, before)
    _flush(program, g, step=1)
    assert all(torch.equal(value, stepped[name]) for name, value in state_of(program).items())


@pytest.mark.parametrize(("backend", "state"), VARIANTS[::2])
def test_export_restores_inputs_and_state(backend: str, state: str) -> None:
    """The final re-export keeps every input, mutates exactly the state, and T as free as the passes left it."""
    program = finished(backend, state).program
    exported = program.to_exported()
    assert exported.graph_signature.user_inputs == FORWARD_INPUTS
    signature = exported.run_decompositions({}).graph_signature
    assert sorted(signature.buffers_to_mutate.values()) == sorted(program.state_names())
    bounds = [(int(r.lower), int(r.upper)) for r in exported.range_constraints.values()]
    assert bounds == ([(2, OPTIONS.seq_len)] if not isinstance(_num_tokens(program), int) else [])


class Textbook:
    """Algorithm 1 on the unmodified model: weights merged for each query and sign, one forward for each."""

    def __init__(self) -> None:
        self._model = MODEL.build()
        self._loss = LossModel(self._model)
        layers = [self._model.get_submodule(site) for site in SITES]
        self._weights = [layer.weight.detach().clone() for layer in layers]
        self._layers = layers
        self._frozen = [lora_a(OPTIONS.a_seed, i, OPTIONS.rank, w.shape[1]) for i, w in enumerate(self._weights)]
        self.masters = [torch.zeros(OPTIONS.rank, w.shape[0]) for w in self._weights]

    def losses(self, rows: tuple[Tensor, ...], g: Tensor, step: int) -> Tensor:
        """Update with the g of the step before, then evaluate every row under its own perturbation."""
        self.masters = self.updated(g, step)
        losses = []
        for i in range(OPTIONS.q):
            for s, sign in enumerate((1.0, -1.0)):
                moved = [m + sign * EPS * self._noise(step, site)[i] for site, m in enumerate(self.masters)]
                first = (2 * i + s) * OPTIONS.batch_size
                part = slice(first, first + OPTIONS.batch_size)
                losses.append(self.loss(tuple(each[part] for each in rows), moved))
        return torch.cat(losses)

    def updated(self, g: Tensor, step: int) -> list[Tensor]:
        """M - lr/q sum_i g_i z_i of the step before."""
        return [
            m - LR / OPTIONS.q * torch.einsum("q,qro->ro", g, self._noise(step - 1, site))
            for site, m in enumerate(self.masters)
        ]

    def loss(self, rows: tuple[Tensor, ...], adapters: list[Tensor]) -> Tensor:
        """Loss of every row with W + alpha/r (A^T B)^T in place of W."""
        scale = OPTIONS.alpha / OPTIONS.rank
        for layer, w, a, b in zip(self._layers, self._weights, self._frozen, adapters, strict=True):
            layer.weight = nn.Parameter(w + scale * (a.T @ b).T, requires_grad=False)
        with torch.no_grad():
            loss: Tensor = self._loss(*rows)
        return loss

    def _noise(self, step: int, site: int) -> Tensor:
        shape = self.masters[site].shape
        return noise.randn(torch.tensor(SEED), torch.tensor(step), site, OPTIONS.q, shape)


def _rows(program: GraphProgram, seed: int, seq_len: int = 8) -> tuple[Tensor, ...]:
    """Tokens, label positions and targets of eight different rows; one target is ignored."""
    length = seq_len if not isinstance(_num_tokens(program), int) else OPTIONS.seq_len
    tokens, label_pos, targets = row_inputs(program, seed=seed, seq_len=length)[:3]
    targets[0, 1] = -100
    return tokens, label_pos, targets


def _num_tokens(program: GraphProgram) -> int | torch.SymInt:
    size: int | torch.SymInt = program.placeholders()[0].meta["val"].shape[1]
    return size


def _scalars(step: int) -> tuple[Tensor, ...]:
    return torch.tensor(LR), torch.tensor(EPS), torch.tensor(SEED), torch.tensor(step)


def _reset(program: GraphProgram) -> None:
    set_state(program, {name: torch.zeros_like(value) for name, value in state_of(program).items()})


def _flush(program: GraphProgram, g: Tensor, step: int) -> None:
    apply = extract_apply(program)
    assert tuple(node.target for node in apply.placeholders()) == APPLY_INPUTS
    run(apply, (g, torch.tensor(LR), torch.tensor(SEED), torch.tensor(step)))

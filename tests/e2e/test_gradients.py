"""Gradients of rewritten graphs against PyTorch's autograd on the unmodified Hugging Face model.

The graphs are those that would be lowered, less the optimiser at their end. Nothing is lowered here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from prgec.backends import load_backend
from prgec.compiler.frontend.model import export_loss
from prgec.compiler.options import CompileOptions
from prgec.compiler.pipelines import default_pipeline
from prgec.passes.insert_optimizer import InsertOptimizer
from prgec.passes.pipeline import run_pipeline
from prgec.passes.program import GraphProgram
from prgec.passes.sites import b_name, sites_of
from tests.architectures import ARCHITECTURES, SEQ_LEN, Architecture, architecture, random_rows
from tests.autograd import IGNORED, STREAMS, LoraFa

OPTIONS = CompileOptions(
    model="unused",
    method="exact",
    batch_size=3,
    seq_len=SEQ_LEN,
    num_labels=2,
    rank=4,
    alpha=8.0,
    a_seed=3,
    backend="xnnpack",
    output=Path("unused.pte"),
)
# Shorter than the window of attention, and in between; the longest last.
LENGTHS = (4, 11, SEQ_LEN)
ROUNDING = 2e-5
# Plain writers, two at once, norms after writers, and layers of other names.
STREAMED = ("Llama", "GPT-NeoX", "Gemma 2", "GPT-2")


@pytest.mark.parametrize("each", ARCHITECTURES, ids=lambda each: each.model_type)
def test_exact_gradients_are_those_of_autograd(each: Architecture) -> None:
    program = _graph(each, "exact")
    assert len(sites_of(program)) == each.num_sites
    oracle = _oracle(each, program)
    for length in LENGTHS:
        rows = _rows(length)
        _assert_equal(program, rows, oracle.losses(*rows), oracle.gradients(rows))


@pytest.mark.parametrize("name", ["Llama", "GPT-NeoX"])
def test_gradients_where_the_length_is_fixed(name: str) -> None:
    """Cuts of activations stay there, and have a derivative."""
    each = architecture(name)
    program = _graph(each, "exact", dynamic=False)
    assert any(program.calls(torch.ops.aten.slice.Tensor, torch.ops.aten.chunk.default))
    oracle, rows = _oracle(each, program), _rows(SEQ_LEN)
    _assert_equal(program, rows, oracle.losses(*rows), oracle.gradients(rows))


@pytest.mark.parametrize("name", STREAMED)
def test_shortcut_gradients_are_those_of_its_definition(name: str) -> None:
    """Autograd in the last block; below it, what enters the last block reaches every write as it is."""
    each = architecture(name).deeper(3)
    stream = STREAMS[each.model_type]
    program = _graph(each, "shortcut")
    below = stream.written_below(2)
    names = [site.name for site in sites_of(program)]
    assert sorted(names[: len(below)]) == sorted(below)
    in_last = names[len(below) :]
    assert len(in_last) == each.num_sites // 3
    assert all(each.startswith(f"{stream.blocks}.2.") for each in in_last)
    oracle = _oracle(each, program)
    rows = _rows(11)
    expected = oracle.gradients(rows)
    handed_down = oracle.handed_down(rows, f"{stream.blocks}.2", below)
    in_first = [site for site in below if site.startswith(f"{stream.blocks}.0.")]
    assert all(_relative(handed_down[site], expected[site]) > 0.05 for site in in_first), "nothing is cut short here"
    _assert_equal(program, rows, oracle.losses(*rows), {**expected, **handed_down})


def test_shortcut_gradients_keep_their_promise_at_every_position() -> None:
    """As in chat: every position has a label of its own but those of the prompt, of another length in each row."""
    each = architecture("Llama").deeper(3)
    stream = STREAMS[each.model_type]
    program = _graph(each, "shortcut", num_labels=10)
    oracle = _oracle(each, program)
    below = stream.written_below(2)
    tokens, _, _ = _rows(11)
    label_pos = torch.arange(10).expand(OPTIONS.num_rows, -1).contiguous()
    targets = tokens[:, 1:].clone()
    for row, prompt in enumerate((0, 3, 7)):
        targets[row, :prompt] = IGNORED
    rows = tokens, label_pos, targets
    expected = oracle.gradients(rows)
    handed_down = oracle.handed_down(rows, f"{stream.blocks}.2", below)
    in_first = [site for site in below if site.startswith(f"{stream.blocks}.0.")]
    assert all(_relative(handed_down[site], expected[site]) > 0.05 for site in in_first), "nothing is cut short here"
    _assert_equal(program, rows, oracle.losses(*rows), {**expected, **handed_down})


def _graph(each: Architecture, method: str, *, num_labels: int = 2, dynamic: bool = True) -> GraphProgram:
    """The graph with gradients among its outputs, at values of B that matter."""
    options = replace(OPTIONS, method=method, num_labels=num_labels)
    program = export_loss(
        each.build().requires_grad_(False),
        num_rows=options.num_rows,
        seq_len=SEQ_LEN,
        num_labels=num_labels,
        dynamic=dynamic,
    )
    passes = default_pipeline(options, load_backend(options.backend))
    run_pipeline(program, [each for each in passes if not isinstance(each, InsertOptimizer)])
    generator = torch.Generator().manual_seed(7)
    for site in sites_of(program):
        b_RO = program.module.get_buffer(b_name(site.name))
        b_RO.copy_(0.1 * torch.randn(b_RO.shape, generator=generator))
    return program


def _oracle(each: Architecture, program: GraphProgram) -> LoraFa:
    state = {site.name: program.module.get_buffer(b_name(site.name)) for site in sites_of(program)}
    return LoraFa(each.build(), state, alpha=OPTIONS.alpha, a_seed=OPTIONS.a_seed)


def _rows(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random rows; the first ignores one of its labels, the last both."""
    tokens, label_pos, targets = random_rows(OPTIONS.num_rows, length)
    targets[-1] = IGNORED
    return tokens, label_pos, targets


def _assert_equal(
    program: GraphProgram, rows: tuple[Tensor, ...], losses: Tensor, gradients: Mapping[str, Tensor]
) -> None:
    """Losses, the whole gradient, and that of every site."""
    with torch.no_grad():
        found_losses, *found = program.module(*rows)
    torch.testing.assert_close(found_losses, losses, rtol=1e-5, atol=1e-6)
    assert len(found) == len(gradients)
    for site, ours in zip(sites_of(program), found, strict=True):
        assert _relative(ours, gradients[site.name]) < ROUNDING, site.name
    whole = [torch.cat([each.flatten() for each in parts]) for parts in (found, gradients.values())]
    assert _relative(*whole) < ROUNDING


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())

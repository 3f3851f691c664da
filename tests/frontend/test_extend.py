"""A model with a cache gives the logits of transformers' own forward over the whole text."""

from __future__ import annotations

import pytest
import torch

from prgec.compiler.frontend.extend import export_extend
from prgec.errors import CheckpointError
from prgec.passes.program import GraphProgram
from tests.architectures import ARCHITECTURES, WINDOW, architecture
from tests.families import family
from tests.models import TinyLlama

CONTEXT = 24
# The sum is longer than every window, single tokens among them.
PARTS = (WINDOW + 4, 3, 1, 1, 2, 1)
# Grouped queries; soft caps with a window in every other layer; two kinds of RoPE; fused layers without RoPE.
FAST = ("Llama", "Gemma 3", "GPT-2")


class _Reading:
    """A graph and what it has read; the cache has more room than it needs, and rubbish in it."""

    def __init__(self, program: GraphProgram) -> None:
        self._program = program
        shapes = [each.meta["val"].shape for each in program.placeholders()[3:]]
        self._cache = [torch.full((heads, CONTEXT, width), 3.0) for heads, _, width in shapes]

    def read(self, tokens_T: torch.Tensor, start: int, room: int) -> torch.Tensor:
        inputs = (tokens_T.unsqueeze(0), torch.tensor([[len(tokens_T) - 1]]), torch.tensor([start]))
        logits, *new = self._program.module(*inputs, *(each[:, :room] for each in self._cache))
        for each, fresh in zip(self._cache, new, strict=True):
            each[:, start : start + len(tokens_T)] = fresh
        return logits[0, 0]


@pytest.mark.parametrize(
    "name",
    [each.name if each.name in FAST else pytest.param(each.name, marks=pytest.mark.slow) for each in ARCHITECTURES],
)
def test_logits_are_those_of_the_whole_text(name: str) -> None:
    model = architecture(name).build()
    before = type(model.config).__name__, model.config._attn_implementation
    program = export_extend(model, context=CONTEXT, chunk=12, dynamic=True)
    assert (type(model.config).__name__, model.config._attn_implementation) == before
    tokens_T = torch.randint(3, 64, (sum(PARTS),), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected_TV = model(input_ids=tokens_T.unsqueeze(0)).logits[0]
        start, reading = 0, _Reading(program)
        # The rest of an earlier text in the cache must not be seen.
        reading.read(tokens_T[:9].flip(0), 6, CONTEXT)
        for index, length in enumerate(PARTS):
            room = CONTEXT if index % 2 else max(2, start)
            logits_V = reading.read(tokens_T[start : start + length], start, room)
            start += length
            torch.testing.assert_close(logits_V, expected_TV[start - 1], rtol=1e-5, atol=2e-5)


def test_all_layers_have_one_room() -> None:
    """torch.export names sizes by hashes of two digits, and two of these collide."""
    model = TinyLlama(num_layers=8).build()
    program = export_extend(model, context=CONTEXT, chunk=CONTEXT, dynamic=True)
    sizes = {str(each.meta["val"].shape[1]) for each in program.placeholders()[3:]}
    assert len(sizes) == 1
    assert program.to_exported() is not None


class _Refuses(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")


def test_a_model_that_keeps_more_than_keys_and_values() -> None:
    model = family("LFM2").build()
    with pytest.raises(CheckpointError, match="keeps a state beside keys and values") as refusal:
        export_extend(model, context=8, chunk=4, dynamic=True)
    assert refusal.value.hint is not None and "leave out --context" in refusal.value.hint


def test_a_model_that_cannot_be_traced() -> None:
    model = architecture("Llama").build()
    model.model.norm = _Refuses()
    with pytest.raises(CheckpointError, match="^torch.export cannot trace LlamaForCausalLM with a cache: not today$"):
        export_extend(model, context=CONTEXT, chunk=12, dynamic=False)

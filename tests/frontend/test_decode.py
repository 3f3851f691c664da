"""The next token of several texts at once has the logits of transformers' own forward over each text."""

from __future__ import annotations

import pytest
import torch

from prgec.compiler.frontend.decode import export_decode
from prgec.passes.program import GraphProgram
from tests.architectures import ARCHITECTURES, WINDOW, architecture

CONTEXT, ROWS, STEPS = 24, 3, 4
# One shorter than every window, one longer, one that begins here.
LENGTHS = (WINDOW - 2, WINDOW + 4, 0)
# Grouped queries; soft caps with a window in every other layer; two kinds of RoPE; fused layers without RoPE.
FAST = ("Llama", "Gemma 3", "GPT-2")


class _Texts:
    """A graph and the caches of its texts, filled token by token; where nothing was read there is rubbish."""

    def __init__(self, program: GraphProgram) -> None:
        self._program = program
        shapes = [each.meta["val"].shape for each in program.placeholders()[2:]]
        self._cache = [torch.full((heads, CONTEXT, width), 3.0) for heads, _, width in shapes]

    def read(self, tokens_R: torch.Tensor, start_R: torch.Tensor, room: int) -> torch.Tensor:
        logits, *new = self._program.module(tokens_R[None], start_R, *(each[:, :room] for each in self._cache))
        for each, fresh in zip(self._cache, new, strict=True):
            by_row, entries = (part.view(ROWS, -1, *part.shape[1:]) for part in (each, fresh))
            for row, start in enumerate(start_R.tolist()):
                by_row[row, :, start] = entries[row, :, 0]
        return logits[0]


@pytest.mark.parametrize(
    "name",
    [each.name if each.name in FAST else pytest.param(each.name, marks=pytest.mark.slow) for each in ARCHITECTURES],
)
def test_logits_are_those_of_each_text(name: str) -> None:
    model = architecture(name).build()
    texts = _Texts(export_decode(model, context=CONTEXT, rows=ROWS))
    tokens_RT = torch.randint(3, 64, (ROWS, CONTEXT), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor(LENGTHS)
    with torch.no_grad():
        for position in range(max(LENGTHS)):
            # A text that has all its tokens reads its last one again.
            start_R = torch.minimum(torch.tensor(position), (lengths - 1).clamp(min=0))
            texts.read(tokens_RT[torch.arange(ROWS), start_R], start_R, CONTEXT)
        for step in range(STEPS):
            start_R = lengths + step
            room = CONTEXT if step % 2 else int(start_R.max())
            found_RV = texts.read(tokens_RT[torch.arange(ROWS), start_R], start_R, room)
            for row, start in enumerate(start_R.tolist()):
                expected_V = model(input_ids=tokens_RT[row : row + 1, : start + 1]).logits[0, -1]
                torch.testing.assert_close(found_RV[row], expected_V, rtol=1e-5, atol=2e-5)

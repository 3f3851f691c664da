"""Which layer reads a weight, and how two 4-bit values share a byte."""

from __future__ import annotations

import pytest
import torch

from prgec.passes import weights
from prgec.passes.gptq import correction_of, rounded_for
from prgec.passes.weights import NIBBLE_ZERO, SCHEMES, layer_name, packed_nibbles, quantized, rounded
from tests.passes.builder import GraphBuilder

aten = torch.ops.aten


@pytest.mark.parametrize(("even_is_low", "expected"), [(True, [0xF0, 0x98]), (False, [0x0F, 0x89])])
def test_every_value_keeps_its_half_of_the_byte(even_is_low: bool, expected: list[int]) -> None:
    values = torch.tensor([[-8, 7, 0, 1]], dtype=torch.int8)
    packed = packed_nibbles(values, even_is_low=even_is_low)
    assert packed.dtype == torch.uint8 and packed.tolist() == [expected]


@pytest.mark.parametrize("even_is_low", [True, False])
def test_all_pairs_come_back(even_is_low: bool) -> None:
    range_16 = torch.arange(-8, 8, dtype=torch.int8)
    values = torch.cartesian_prod(range_16, range_16)
    packed = packed_nibbles(values, even_is_low=even_is_low).squeeze(1).int()
    halves = [packed % 16 - NIBBLE_ZERO, packed // 16 - NIBBLE_ZERO]
    assert torch.equal(torch.stack(halves if even_is_low else halves[::-1], 1), values.int())


def test_a_layer_is_named_after_its_weight() -> None:
    b = GraphBuilder()
    hidden = b.hidden(4)
    named = b.call(aten.linear.default, hidden, b.weight("h.0.fc.weight", 3, 4))
    drawn = b.call(aten.linear.default, hidden, b.weight("h.0.fc.lora_A", 3, 4))
    computed = b.call(aten.linear.default, hidden, b.call(aten.neg.default, b.weight("h.1.fc.weight", 3, 4)))
    assert [layer_name(node) for node in (named, drawn, computed)] == ["h.0.fc", "", ""]


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_parts_of_a_matrix_are_rounded_as_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    matrix, scheme = torch.randn(37, 64, generator=generator), SCHEMES[name]
    correction = correction_of(torch.randn(50, 64, generator=generator))
    group = 32 if scheme.is_grouped else 64

    def made() -> list[torch.Tensor]:
        plain = quantized(matrix, scheme, (1, group)) if scheme.quantizes_input else rounded(matrix, scheme)
        return [*plain, *rounded_for(matrix, correction, scheme, group)]

    whole = made()
    monkeypatch.setattr(weights, "_STRIP_VALUES", 5 * 64)
    assert len(list(weights.strips(matrix))) == 8
    assert all(map(torch.equal, made(), whole))

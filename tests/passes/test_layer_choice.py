"""Blocks are chosen by index, by range, or from the end."""

from __future__ import annotations

import pytest

from prgec.errors import UsageError
from prgec.passes.layer_choice import block_of, chosen

NAMES = ["embed", *(f"model.layers.{block}.self_attn.{leaf}" for block in range(4) for leaf in ("q_proj", "v_proj"))]


def _blocks(*layers: str) -> list[int | None]:
    return list(dict.fromkeys(block_of(name) for name in chosen(NAMES, layers)))


def test_all_keeps_paths_outside_blocks() -> None:
    assert chosen(NAMES, ("all",)) == NAMES


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(("last:1",), [3]), (("last:4",), [0, 1, 2, 3]), (("1",), [1]), (("0", "2-3"), [0, 2, 3]), (("3", "1"), [1, 3])],
)
def test_choice(layers: tuple[str, ...], expected: list[int]) -> None:
    assert _blocks(*layers) == expected


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("last:5", "layers last:5 does not fit a model of 4 layers"),
        ("last:0", "layers last:0 does not fit a model of 4 layers"),
        ("7", "there is no layer 7. Hint: the model has layers 0 to 3"),
        ("3-1", "layers '3-1' ends before it begins"),
        ("first", "layers 'first' is not a choice of layers"),
    ],
)
def test_what_cannot_be_chosen(layers: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        chosen(NAMES, (layers,))
    assert str(caught.value).startswith(message)

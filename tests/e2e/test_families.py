"""More families: losses and gradients are those of transformers and its autograd, in one delegate but for experts.

`tests/e2e/test_architectures.py` has those that every other test of architectures runs over too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architectures import ARCHITECTURES, Architecture, measure
from tests.autograd import STREAMS
from tests.checks.architectures import CHAOTIC
from tests.families import DENSE, EXPERTS, FAMILIES, HYBRID, MEASURED, family
from tests.gradient_architectures import measure_gradient

# One of each kind that a rewrite of its own serves.
FAST = ("Cohere", "LFM2")


def _each(*families: Architecture) -> list[object]:
    return [
        pytest.param(each, marks=() if each.name in FAST else pytest.mark.slow, id=each.model_type) for each in families
    ]


@pytest.mark.parametrize("each", _each(*FAMILIES, *MEASURED))
def test_losses_are_those_of_transformers(each: Architecture, tmp_path: Path) -> None:
    found = measure(each, tmp_path)
    assert found.sites == each.num_sites
    assert len(found.delegates) == 1 or each in (*EXPERTS, *MEASURED)
    assert found.max_rel_loss_diff < 1e-4
    # A perturbation moves the losses of these tiny random ones by a fifth, and rounding is carried along.
    assert found.max_rel_train_diff < (1e-2 if each.name in CHAOTIC else 1e-4)
    assert found.max_abs_state > 0.001


@pytest.mark.parametrize("each", _each(*FAMILIES))
def test_gradients_are_those_of_autograd(each: Architecture, tmp_path: Path) -> None:
    found = measure_gradient(each, tmp_path, "exact")
    assert len(found.delegates) == 1 or each in EXPERTS
    assert found.max_rel_gradient_diff < 1e-4 and found.min_cosine > 0.999999


@pytest.mark.parametrize("each", _each(*(each for each in (*DENSE, *HYBRID) if each.model_type in STREAMS)))
def test_shortcuts_are_what_they_are_defined_as(each: Architecture, tmp_path: Path) -> None:
    found = measure_gradient(each, tmp_path, "shortcut")
    assert len(found.delegates) == 1
    assert found.max_rel_gradient_diff < 1e-4 and found.min_cosine > 0.999999


def test_names_are_unique() -> None:
    names = [each.name for each in (*ARCHITECTURES, *FAMILIES, *MEASURED)]
    assert len(set(names)) == len(names)
    assert family("LFM2").model_type == "lfm2"

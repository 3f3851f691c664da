"""Compiled programs follow the oracle: loss by loss, and in the B they end with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.errors import UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from tests.e2e.conftest import Compile
from tests.lockstep import Comparison, Run, follow, oracle_for, random_steps
from tests.models import TinyLlama

ROOT = Path(__file__).resolve().parents[2]
EPS, LR, SEED = 1e-2, 5e-3, 2**40 + 5
ATTENTION = tuple(f"self_attn.{name}_proj" for name in "qkvo")
MLP = tuple(f"mlp.{name}_proj" for name in ("gate", "up", "down"))


def _follow(path: Path, checkpoint: Path, lr: float = LR) -> Comparison:
    program = open_pte(path)
    oracle = oracle_for(program, checkpoint, eps=EPS, seed=SEED)
    return follow(program, oracle, random_steps(10, program.manifest, lr=lr, pool=6))


def _check(found: Comparison) -> None:
    # A step moves B by about lr * |g|, a hundred times the bound on its error.
    assert found.max_abs_state > 0.02
    assert found.max_rel_loss_diff < 1e-5
    assert found.max_rel_state_diff < 1e-4


def test_follows_the_oracle(open_program: Callable[[], PteProgram], checkpoint: Path) -> None:
    program = open_program()
    oracle = oracle_for(program, checkpoint, eps=EPS, seed=SEED)
    steps = random_steps(10, program.manifest, lr=LR, pool=6)
    lengths = {max(len(e.prompt) + len(e.completion) for e in examples) for examples, _ in steps}
    assert len(lengths) > 2, "T should vary from step to step"
    _check(follow(program, oracle, steps))


def test_sites_are_the_linear_layers_in_order_of_use(open_program: Callable[[], PteProgram]) -> None:
    sites = open_program().manifest.sites
    assert [site.name for site in sites] == [f"model.layers.0.{name}" for name in (*ATTENTION, *MLP)]
    assert [site.index for site in sites] == list(range(7))
    sizes = [(site.in_features, site.out_features) for site in sites]
    assert sizes == [(32, 32), (32, 16), (32, 16), (32, 32), (32, 48), (32, 48), (48, 32)]


def test_one_query_one_example_and_named_targets(compile_once: Compile, checkpoint: Path) -> None:
    path = compile_once(q=1, batch_size=1, targets=("q_proj", "v_proj"), backend="portable", static=True)
    sites = open_pte(path).manifest.sites
    assert [site.name for site in sites] == [f"model.layers.0.self_attn.{name}_proj" for name in "qv"]
    _check(_follow(path, checkpoint))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("query", "no Linear layer is called 'query'. Hint: this model has: down_proj, gate_proj, k_proj, lm_head"),
        (r".*\.layers\.9\..*", "no Linear layer is called"),
        ("(", r"targets '\(' is not a regular expression: "),
    ],
)
def test_targets_that_name_nothing(compile_once: Compile, target: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        compile_once(targets=("v_proj", target), backend="portable", static=True)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "num_sites", "lr"),
    [
        ({"targets": (r"model\.layers\.1\.mlp\..*",), "q": 3, "batch_size": 1}, 3, LR),
        ({"targets": ("lm_head", "down_proj"), "rank": 1}, 3, LR),
        # Keys alone barely move the loss, so g is small: a larger rate moves B as far.
        ({"targets": ("k_proj",), "rank": 20, "alpha": 5.0, "num_labels": 1, "state": "dual"}, 2, 10 * LR),
    ],
    ids=["regex", "head", "rank-above-width"],
)
def test_other_targets_and_shapes(
    compile_once: Compile, tmp_path: Path, options: dict[str, Any], num_sites: int, lr: float
) -> None:
    checkpoint = TinyLlama(num_layers=2, seed=3).write(tmp_path / "two-layers", max_shard_size="20KB")
    path = compile_once(model=str(checkpoint), backend="xnnpack", **options)
    assert len(open_pte(path).manifest.sites) == num_sites
    _check(_follow(path, checkpoint, lr))


@pytest.mark.slow
def test_both_states_give_the_same_trajectory(compile_once: Compile) -> None:
    """Over 50 steps, to rounding; the noise of `dual` is recovered from its copies, never drawn again."""
    losses = {}
    for state in ("seeded", "dual"):
        run = Run(open_pte(compile_once(backend="xnnpack", state=state)), eps=EPS, seed=SEED)
        steps = random_steps(50, run.program.manifest, lr=2e-3, pool=6)
        losses[state] = np.stack([run.step(examples, lr) for examples, lr in steps])
    np.testing.assert_allclose(losses["dual"], losses["seeded"], rtol=1e-4)


@pytest.mark.slow
def test_parity_command() -> None:
    """Every case passes over a few steps, and stdout is one JSON document."""
    command = [sys.executable, str(ROOT / "tools" / "parity.py"), "--json", "--steps", "5", "--layers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    document = json.loads(done.stdout)
    assert done.returncode == 0 and document["passed"] is True
    cases = {(row["q"], row["state"], row["backend"]) for row in document["cases"]}
    assert cases == {(q, s, b) for q in (1, 4) for s in ("seeded", "dual") for b in ("xnnpack", "portable")}
    assert all(row["max_rel_loss_diff"] <= 1e-4 and row["max_rel_state_diff"] <= 1e-3 for row in document["cases"])

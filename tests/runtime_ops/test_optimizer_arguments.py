"""The arguments that the optimiser operators take, and those they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from prgec.runtime_ops import library as _registers_prge_ops  # noqa: F401 - torch.ops.prge exists only after it
from tests.runtime_ops.test_library import error_of
from tests.runtime_ops.test_optimizers import BETA1, BETA2, EPS, LOSSES, RULES

prge = torch.ops.prge


def arguments(rule: str, **changes: Any) -> dict[str, Any]:
    names = {"norm": ("master",), "momentum": ("master", "mean"), "adamw": ("master", "mean", "square")}[rule]
    tensors = {name: torch.ones(3, 5) for name in (*names, "gradient")}
    betas = {"norm": {}, "momentum": {"beta1": BETA1}, "adamw": {"beta1": BETA1, "beta2": BETA2, "eps": EPS}}[rule]
    return {**tensors, "lr": torch.tensor(0.1), "factors": torch.ones(4), **betas, "decay": 0.0, **changes}


OPS: dict[str, Any] = {"norm": prge.sgd_update, "momentum": prge.momentum_update, "adamw": prge.adamw_update}


def test_out_overloads_write_in_place() -> None:
    for rule, op in OPS.items():
        out = torch.empty(1)
        args, again = arguments(rule), arguments(rule)
        assert op.out(**args, out=out) is out
        assert torch.equal(out, op(**again)) and torch.equal(args["master"], again["master"])
    out = torch.empty(4)
    prge.step_scale.out(
        torch.zeros(4), [torch.ones(2, 2)], LOSSES, torch.tensor(0.1), 0.0, BETA1, BETA2, False, 0.0, out=out
    )
    torch.testing.assert_close(out, torch.tensor([1.0, 2.0, 10.0, 100.0]))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gradient", torch.zeros(3, 4), "gradient is float32[3, 4]; expected float32[3, 5]"),
        ("gradient", torch.zeros(3, 5).double(), "gradient is float64[3, 5]; expected float32[3, 5]"),
        ("master", torch.zeros(3, 5).half(), "master is float16[3, 5]; expected float32[3, 5]"),
        ("mean", torch.zeros(15), "mean is float32[15]; expected float32[3, 5]"),
        ("square", torch.zeros(5, 3), "square is float32[5, 3]; expected float32[3, 5]"),
        ("lr", torch.tensor([0.1]), "lr is float32[1]; expected float32[]"),
        ("factors", torch.ones(3), "factors is float32[3]; expected float32[4]"),
    ],
)
def test_updates_refuse(rule: str, name: str, value: Tensor, message: str) -> None:
    args = arguments(rule)
    if name not in args:
        return
    op = OPS[rule]
    error = error_of(lambda: op(**{**args, name: value}))
    assert error == f"{op._qualified_op_name}: {message}"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("running", torch.zeros(3), "running is float32[3]; expected float32[4]"),
        ("running", torch.zeros(4).double(), "running is float64[4]; expected float32[4]"),
        ("gradients", [], "gradients is empty; expected one a site"),
        ("gradients", [torch.ones(2, 2), torch.ones(2).int()], "gradients is int32[2]; expected float32"),
        ("losses", torch.ones(2, 1), "losses is float32[2, 1]; expected float32[2]"),
        ("losses", torch.ones(2).int(), "losses is int32[2]; expected float32[2]"),
        ("lr", torch.ones(1), "lr is float32[1]; expected float32[]"),
    ],
)
def test_scale_refuses(name: str, value: Any, message: str) -> None:
    good = {"running": torch.zeros(4), "gradients": [torch.ones(2, 2)], "losses": LOSSES, "lr": torch.tensor(0.1)}
    args = {**good, name: value}
    error = error_of(lambda: prge.step_scale(*args.values(), 0.0, BETA1, BETA2, True, 1.0))
    assert error == f"prge::step_scale: {message}"

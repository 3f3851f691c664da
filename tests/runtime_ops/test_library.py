"""The torch.library side: schemas, fake kernels, the meaning of dual_update, and refusals."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from prgec.runtime_ops import library, schemas

SEED, STEP = torch.tensor(11), torch.tensor(5)


def update_args(rank: int = 3, out: int = 5, q: int = 2, **changes: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    args = {
        "master": torch.randn(rank, out, generator=generator),
        "g": torch.randn(q, generator=generator),
        "lr": torch.tensor(0.3),
        "eps": torch.tensor(0.01),
        "seed": SEED,
        "step": STEP,
        "site": 4,
    }
    return {**args, **changes}


def test_schemas_are_registered_as_written() -> None:
    for schema in schemas.SCHEMAS:
        packet = getattr(torch.ops.prge, schema.name)
        assert str(packet.default._schema) == f"{schemas.NAMESPACE}::{schema.functional}"
        assert str(packet.out._schema) == f"{schemas.NAMESPACE}::{schema.out}"


def test_registration_is_idempotent() -> None:
    importlib.reload(library)
    assert torch.ops.prge.randn(SEED, STEP, 0, 1, [3]).shape == (1, 3)


def test_opcheck() -> None:
    torch.library.opcheck(torch.ops.prge.randn.default, (SEED, STEP, 2, 3, [5, 7]))
    torch.library.opcheck(torch.ops.prge.dual_update.default, tuple(update_args().values()))
    torch.library.opcheck(torch.ops.prge.perturbation.default, tuple(update_args().values()))


def test_fake_kernels_agree_with_real_shapes() -> None:
    with FakeTensorMode() as mode:
        fake = {k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in update_args().items()}
        copies = torch.ops.prge.dual_update(**fake)
        z = torch.ops.prge.randn(fake["seed"], fake["step"], 2, 3, [5, 7])
    assert (copies.shape, copies.dtype) == ((4, 3, 5), torch.float32)
    assert (z.shape, z.dtype) == ((3, 5, 7), torch.float32)


def test_dual_update_is_its_definition() -> None:
    args = update_args(q=3)
    before = torch.ops.prge.randn(SEED, STEP - 1, 4, 3, [3, 5])
    now = torch.ops.prge.randn(SEED, STEP, 4, 3, [3, 5])
    expected = args["master"] - args["lr"] / 3 * (args["g"].reshape(3, 1, 1) * before).sum(0)

    copies = torch.ops.prge.dual_update(**args)

    torch.testing.assert_close(args["master"], expected, rtol=1e-6, atol=1e-6)
    for i in range(3):
        assert torch.equal(copies[2 * i], args["master"] + args["eps"] * now[i])
        assert torch.equal(copies[2 * i + 1], args["master"] - args["eps"] * now[i])


@pytest.mark.parametrize("eps", [0.01, 0.0])
def test_perturbation_is_how_far_copies_are_from_the_master(eps: float) -> None:
    given, same = update_args(q=3, eps=torch.tensor(eps)), update_args(q=3, eps=torch.tensor(eps))
    copies, moves = torch.ops.prge.dual_update(**given), torch.ops.prge.perturbation(**same)
    assert torch.equal(same["master"], given["master"])
    assert moves.shape == (3, 1, 3, 5)
    assert torch.equal(copies[0::2], same["master"] + moves[:, 0])
    assert torch.equal(copies[1::2], same["master"] - moves[:, 0])


def test_zero_g_leaves_master_untouched() -> None:
    args = update_args(g=torch.zeros(2), lr=torch.tensor(float("inf")))
    before = args["master"].clone()
    torch.ops.prge.dual_update(**args)
    assert torch.equal(args["master"], before)


def test_zero_eps_copies_master() -> None:
    args = update_args(eps=torch.tensor(0.0))
    copies = torch.ops.prge.dual_update(**args)
    assert torch.equal(copies, args["master"].expand(4, 3, 5))


def test_out_overloads_write_in_place() -> None:
    out = torch.empty(3, 7)
    assert torch.ops.prge.randn.out(SEED, STEP, 2, 3, [7], out=out) is out
    assert torch.equal(out, torch.ops.prge.randn(SEED, STEP, 2, 3, [7]))
    copies = torch.empty(4, 3, 5)
    torch.ops.prge.dual_update.out(**update_args(), out=copies)
    assert torch.equal(copies, torch.ops.prge.dual_update(**update_args()))
    moves = torch.empty(2, 1, 3, 5)
    torch.ops.prge.perturbation.out(**update_args(), out=moves)
    assert torch.equal(moves, torch.ops.prge.perturbation(**update_args()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"master": torch.zeros(3, 5, dtype=torch.float16)}, "master is float16[3, 5]; expected float32 of rank 2"),
        ({"master": torch.zeros(15)}, "master is float32[15]; expected float32 of rank 2"),
        ({"g": torch.zeros(2, dtype=torch.float64)}, "g is float64[2]; expected float32 of rank 1"),
        ({"g": torch.zeros(0)}, "g is empty; expected one value per query"),
        ({"lr": torch.zeros(1)}, "lr is float32[1]; expected float32 of rank 0"),
        ({"eps": torch.tensor(1)}, "eps is int64[]; expected float32 of rank 0"),
        ({"seed": torch.tensor(1, dtype=torch.int32)}, "seed is int32[]; expected int64 of rank 0"),
        ({"step": torch.zeros(2, dtype=torch.int64)}, "step is int64[2]; expected int64 of rank 0"),
        ({"site": -1}, "site is -1; expected 0 <= site < 2^32"),
    ],
)
@pytest.mark.parametrize("op", ["dual_update", "perturbation"])
def test_updates_refuse(changes: dict[str, Any], message: str, op: str) -> None:
    args = update_args(**changes)
    assert error_of(lambda: getattr(torch.ops.prge, op)(**args)) == f"prge::{op}: {message}"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: torch.ops.prge.randn(SEED.float(), STEP, 0, 1, [2]), "seed is float32[]; expected int64 of rank 0"),
        (lambda: torch.ops.prge.randn(SEED, STEP, 2**32, 1, [2]), "site is 4294967296; expected 0 <= site < 2^32"),
        (lambda: torch.ops.prge.randn(SEED, STEP, 0, 0, [2]), "q is 0; expected at least 1"),
        (lambda: torch.ops.prge.randn(SEED, STEP, 0, 1, [2, -1]), "shape is [2, -1]; expected no negative extent"),
        (
            lambda: torch.ops.prge.randn.out(SEED, STEP, 0, 1, [2], out=torch.empty(2)),
            "out is float32[2]; expected float32[1, 2]",
        ),
    ],
)
def test_randn_refuses(call: Callable[[], torch.Tensor], message: str) -> None:
    assert error_of(call) == f"prge::randn: {message}"


def error_of(call: Callable[[], torch.Tensor]) -> str:
    with pytest.raises(ValueError) as caught:
        call()
    return str(caught.value)

"""Devices whose programs differ in backend, batch size and quantisation keep bit-identical adapters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prgec.core.data.row import Row
from prgec.core.formats.adapter import identity, masters_sha256
from prgec.core.formats.journal_records import Header
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.coordinator import Coordinator
from prgec.runtime.federated.device import FederatedDevice
from prgec.runtime.federated.local import RoundPlan, train_locally
from prgec.runtime.federated.rounds import Rounds
from prgec.runtime.training.schedules import Rates
from tests.e2e.conftest import Compile, compiler
from tests.e2e.conftest import checkpoint as checkpoint
from tests.shared import Shared

SEED, EPS, STEPS = 3, 1e-2, 20
SMALL_GROUPS = {"quantize": "8da4w", "group_size": 32}
# An f32 program of portable kernels, one of XNNPACK with twice the rows, and one whose base is in 4 bits.
KINDS = (
    {"backend": "portable", "batch_size": 2},
    {"backend": "xnnpack", "batch_size": 4},
    {"backend": "xnnpack", "batch_size": 2, **SMALL_GROUPS},
)


@pytest.fixture
def compile_once(shared: Shared, checkpoint: Path) -> Compile:
    return compiler(shared, checkpoint)


@pytest.fixture
def devices(compile_once: Compile) -> list[FederatedDevice]:
    random = np.random.default_rng(0)
    rows = [
        Row(tokens=tuple(random.integers(3, 300, 8).tolist()), label_pos=(7,), targets=(5 + n % 3,), truncated=False)
        for n in range(24)
    ]
    return [
        FederatedDevice(f"device {n}", open_pte(compile_once(**kind)), rows[n::3], seed=SEED, eps=EPS, order=n)
        for n, kind in enumerate(KINDS)
    ]


def _header(device: FederatedDevice, steps: int) -> Header:
    m = device.program.manifest
    ours = identity(m), masters_sha256(device.program)
    return Header(m.q, 4, SEED, steps, 1e-3, EPS, "linear", "norm", 0, 0, *ours)


def test_steps_keep_states_equal(devices: list[FederatedDevice], tmp_path: Path) -> None:
    header = _header(devices[0], STEPS)
    assert {_header(each, STEPS) for each in devices} == {header}
    with Coordinator(tmp_path / "journal.bin", header, Rates(STEPS, 1e-3)) as server:
        while not server.is_over:
            reports = []
            for each in devices:
                each.catch_up(server.updates(each.step))
                server.confirm(each.step, each.state_sha256(), each.name)
                reports.append(each.measure())
                server.submit(reports[-1])
            # They measure the same step of different rows, on bases that differ.
            assert len({report.differences.tobytes() for report in reports}) == len(devices)
            server.close_step()
        for each in devices:
            each.catch_up(server.updates(each.step))
    (state,) = {each.state_sha256() for each in devices}
    assert state != header.start_sha256


def test_rounds_keep_states_equal(devices: list[FederatedDevice], tmp_path: Path) -> None:
    plan = RoundPlan(rounds=2, places=3, local_steps=5)
    header = _header(devices[0], plan.steps)
    with Rounds(tmp_path / "journal.bin", header, plan, Rates(10, 1e-3)) as server:
        while not server.is_over:
            for each in devices:
                place = server.place_of(each.name)
                assert place is not None
                first = plan.first(server.number, place)
                server.submit(
                    train_locally(each, number=server.number, first=first, rates=server.rates, estimator="norm")
                )
            server.close_round()
            for each in devices:
                each.catch_up(server.updates(each.step))
    assert len({each.state_sha256() for each in devices}) == 1


def test_a_program_of_other_layers_belongs_to_another_run(
    devices: list[FederatedDevice], compile_once: Compile
) -> None:
    other = open_pte(compile_once(backend="portable", rank=2))
    assert identity(other.manifest) != identity(devices[0].program.manifest)

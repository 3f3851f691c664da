"""Rounds of local steps: all devices end with the same bits, and the journal is that of any run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prgec.core.contract.calls import StepInputs
from prgec.core.data.batches import step_indices, training_batch
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row
from prgec.core.formats.adapter import masters_sha256
from prgec.core.formats.journal import read_journal
from prgec.errors import DataError, NumericsError, UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.device import FederatedDevice
from prgec.runtime.federated.local import Contribution, RoundPlan, scales, train_locally
from prgec.runtime.federated.rounds import Rounds
from prgec.runtime.runs.resume import rebuild
from prgec.runtime.training.estimators import find_estimator
from prgec.runtime.training.prge_trainer import Estimation, PrgeTrainer
from prgec.runtime.training.schedules import learning_rate
from tests.federated.fleet import COURSE, DEVICES, EPS, PLAN, SEED, device, mean_loss, read_rows, rounds


@pytest.fixture
def rows(tiny_pte: Path, train_data: Dataset) -> list[Row]:
    return read_rows(tiny_pte, train_data)


def _contribution(server: Rounds, each: FederatedDevice) -> Contribution:
    each.catch_up(server.updates(each.step))
    place = server.place_of(each.name)
    assert place is not None
    first = server.plan.first(server.number, place)
    return train_locally(each, number=server.number, first=first, rates=server.rates, estimator=server.header.estimator)


def _finish(server: Rounds, devices: Sequence[FederatedDevice]) -> None:
    for each in devices:
        each.catch_up(server.updates(each.step))


def test_states_are_equal_whatever_is_lost_or_comes_twice(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    devices = [device(tiny_pte, rows, number) for number in range(DEVICES)]
    last: Contribution | None = None
    with rounds(tmp_path / "journal.bin", open_pte(tiny_pte)) as server:
        while not server.is_over:
            for each in random.permutation(np.array(devices, dtype=object)):
                found = _contribution(server, each)
                if random.random() > 0.3 or each is devices[0]:
                    assert server.submit(found) and not server.submit(found)
                    last = found
            server.close_round()
            assert last is not None and not server.submit(last)
            for each in devices:
                each.catch_up(server.updates(each.step))
                server.confirm(each.step, each.state_sha256(), each.name)
        newcomer = device(tiny_pte, rows, 1)
        _finish(server, [*devices, newcomer])
    assert len({each.state_sha256() for each in (*devices, newcomer)}) == 1
    replayed = open_pte(tiny_pte)
    assert rebuild(replayed, read_journal(tmp_path / "journal.bin"), None) == PLAN.steps
    assert masters_sha256(replayed) == newcomer.state_sha256()
    assert mean_loss(replayed, rows) < 0.9 * mean_loss(open_pte(tiny_pte), rows)


def test_one_device_and_one_round_are_an_ordinary_run_bit_for_bit(
    tiny_pte: Path, rows: list[Row], tmp_path: Path
) -> None:
    only = FederatedDevice("only", open_pte(tiny_pte), rows, seed=SEED, eps=EPS, order=SEED)
    plan = RoundPlan(rounds=1, places=1, local_steps=20)
    program = open_pte(tiny_pte)
    trainer = PrgeTrainer(program, Estimation(estimator=find_estimator("norm"), eps=EPS, seed=SEED))
    for step in range(1, 21):
        indices = step_indices(len(rows), program.manifest.batch_size, SEED, step)
        trainer.step(training_batch(rows, indices, program.manifest), learning_rate(COURSE, step))
    trainer.flush()
    with rounds(tmp_path / "journal.bin", open_pte(tiny_pte), plan=plan) as server:
        start = only.state_sha256()
        server.submit(_contribution(server, only))
        assert only.state_sha256() == start
        server.close_round()
        _finish(server, [only])
    assert only.state_sha256() == masters_sha256(program)


@pytest.mark.parametrize(("estimator", "divisor"), [("norm", math.sqrt(2)), ("plain", 2.0)])
def test_a_round_adds_what_its_devices_learnt(
    tiny_pte: Path, rows: list[Row], tmp_path: Path, estimator: str, divisor: float
) -> None:
    """The oracle adds up the changes of the masters that each device would have alone."""
    devices = [device(tiny_pte, rows, number, 2) for number in range(2)]
    changes = []
    with rounds(tmp_path / "journal.bin", open_pte(tiny_pte), estimator=estimator) as server:
        for each in devices:
            found = _contribution(server, each)
            server.submit(found)
            alone = open_pte(tiny_pte)
            first = server.plan.first(1, len(changes))
            for step, (lr, g_q) in enumerate(zip(server.rates, found.g, strict=True), start=first + 1):
                alone.apply(StepInputs(g_q=g_q, lr=lr, seed=SEED, step=step + 1))
            changes.append(next(iter(alone.read_state().values())))
        server.close_round()
        _finish(server, devices)
    for each in devices:
        (found_state,) = each.program.read_state().values()
        np.testing.assert_allclose(found_state, (changes[0] + changes[1]) / divisor, rtol=1e-4, atol=1e-6)
    # They drew different noise.
    assert abs(np.corrcoef(changes[0].ravel(), changes[1].ravel())[0, 1]) < 0.9


def test_a_killed_server_goes_on_with_the_last_whole_round(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    def run(path: Path, kills: set[int]) -> str:
        here = [device(tiny_pte, rows, n) for n in range(DEVICES)]
        server = rounds(path, open_pte(tiny_pte))
        while not server.is_over:
            for each in here:
                server.submit(_contribution(server, each))
            if server.number in kills:
                kills.discard(server.number)
                size = path.stat().st_size
                server.close_round()
                # As if it had been killed while it wrote: no device has received the round.
                with path.open("r+b") as file:
                    file.truncate((size + path.stat().st_size) // 2)
                server = rounds(path, open_pte(tiny_pte))
                continue
            server.close_round()
        _finish(server, here)
        return here[0].state_sha256()

    assert run(tmp_path / "killed.bin", {1, 4}) == run(tmp_path / "whole.bin", set())
    assert (tmp_path / "killed.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()


def test_a_poisoner_moves_the_mean_and_not_what_is_clipped(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    def trained(merge: str) -> float:
        here = [device(tiny_pte, rows, number) for number in range(DEVICES)]
        with rounds(tmp_path / f"{merge}.bin", open_pte(tiny_pte), merge) as server:
            while not server.is_over:
                for each in here:
                    found = _contribution(server, each)
                    server.submit(replace(found, g=-1000 * found.g) if each is here[-1] else found)
                server.close_round()
            _finish(server, here)
        return mean_loss(here[0].program, rows)

    start = mean_loss(open_pte(tiny_pte), rows)
    assert trained("mean") > start
    assert trained("clipped") < 0.97 * start


@pytest.mark.parametrize(
    ("g", "num_rows", "message"),
    [
        (np.full((10, 2), np.nan), 2, "not finite"),
        (np.full((10, 2), 1e35), 2, "not finite"),
        (np.zeros((9, 2)), 2, r"has \[9, 2\] numbers; expected \[10, 2\]"),
        (np.zeros((10, 2)), 0, "is of 0 rows; expected 1 to 20"),
        (np.zeros((10, 2)), 21, "is of 21 rows; expected 1 to 20"),
    ],
)
def test_numbers_that_cannot_be_used_are_refused_by_name(
    tiny_pte: Path, tmp_path: Path, g: np.ndarray, num_rows: int, message: str
) -> None:
    with rounds(tmp_path / "journal.bin", open_pte(tiny_pte)) as server:
        server.place_of("phone 7")
        with pytest.raises(DataError, match=f"{message}.*phone 7"):
            server.submit(Contribution(device="phone 7", number=1, num_rows=num_rows, g=g.astype(np.float32)))
        with pytest.raises(UsageError, match="no device has contributed to round 1"):
            server.close_round()


def test_places_are_handed_out_once(tiny_pte: Path, tmp_path: Path) -> None:
    zeros = np.zeros((10, 2), dtype=np.float32)
    with rounds(tmp_path / "journal.bin", open_pte(tiny_pte)) as server:
        assert [server.place_of(name) for name in "cabcd"] == [0, 1, 2, 0, None]
        assert not server.submit(Contribution(device="d", number=1, num_rows=2, g=zeros))
        assert server.submit(Contribution(device="a", number=1, num_rows=2, g=zeros))
        assert len(server.close_round()) == PLAN.block
        assert server.place_of("d") == 0
    with pytest.raises(UsageError, match="there is no merge of rounds 'sum'"):
        rounds(tmp_path / "other.bin", open_pte(tiny_pte), "sum")
    with pytest.raises(UsageError, match="--local-steps is 0"):
        replace(PLAN, local_steps=0).check()


def test_a_device_that_fails_keeps_the_common_state(tiny_pte: Path, rows: list[Row]) -> None:
    each = device(tiny_pte, rows, 0)
    start = each.state_sha256()
    with pytest.raises(NumericsError):
        train_locally(each, number=1, first=0, rates=[1.0, 1e38, 1e38, 1e38], estimator="norm")
    assert each.state_sha256() == start


@pytest.mark.parametrize("merge", ["mean", "clipped"])
def test_merged_steps_have_the_length_of_one(merge: str) -> None:
    """Directions are orthogonal, so lengths add in squares."""
    g = np.full((3, 2), 0.5, dtype=np.float32)
    found = scales(
        {place: Contribution(device=str(place), number=1, num_rows=n, g=g) for place, n in enumerate((10, 10, 30))},
        merge,
        [0.1] * 3,
        estimator="norm",
    )
    assert sum(factor**2 for factor in found.values()) == pytest.approx(1.0)
    assert found[2] == pytest.approx(found[0] * (3 if merge == "mean" else 1))

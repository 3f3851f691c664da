"""Devices that exchange q numbers a step learn like one device with all rows, and keep bit-identical states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prgec.core.data.batches import step_indices, training_batch
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row, encode_rows
from prgec.core.formats.adapter import identity, masters_sha256
from prgec.core.formats.journal import read_journal
from prgec.core.formats.journal_records import Header
from prgec.errors import DataError, UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.federated.coordinator import Coordinator
from prgec.runtime.federated.device import Contribution, FederatedDevice, merge_locally, train_locally
from prgec.runtime.federated.merge import MERGES, Report
from prgec.runtime.runs.resume import rebuild
from prgec.runtime.training.estimators import find_estimator
from prgec.runtime.training.evaluate import row_losses
from prgec.runtime.training.prge_trainer import PrgeTrainer
from prgec.runtime.training.schedules import Rates, learning_rate
from tests.shared import Shared
from tests.tiny_program import MANIFEST, build_pte

SEED, EPS, STEPS, DEVICES = 5, 5e-2, 60, 3
RATES = Rates(STEPS, 0.05)


@pytest.fixture
def rows(tiny_pte: Path, train_data: Dataset) -> list[Row]:
    program = open_pte(tiny_pte)
    return encode_rows([(e, e.completion or "") for e in train_data.examples], program.tokenizer, program.manifest)


@pytest.fixture
def devices(tiny_pte: Path, rows: list[Row]) -> list[FederatedDevice]:
    return [_device(tiny_pte, rows, number) for number in range(DEVICES)]


def _device(path: Path, rows: list[Row], number: int) -> FederatedDevice:
    own = rows[number::DEVICES]
    return FederatedDevice(f"device {number}", open_pte(path), own, seed=SEED, eps=EPS, order=number)


def _coordinator(path: Path, program: PteProgram, merge: str = "mean", **changes: object) -> Coordinator:
    m = program.manifest
    header = Header(
        m.q,
        m.batch_size,
        SEED,
        STEPS,
        RATES.lr,
        EPS,
        RATES.schedule,
        "norm",
        0,
        0,
        identity(m),
        masters_sha256(program),
    )
    return Coordinator(path, replace(header, **changes), RATES, merge=merge)  # type: ignore[arg-type]


def test_states_are_equal_whatever_is_lost_or_comes_twice(
    devices: list[FederatedDevice], rows: list[Row], tiny_pte: Path, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    late: list[Report] = []
    with _coordinator(tmp_path / "journal.bin", open_pte(tiny_pte)) as coordinator:
        while not coordinator.is_over:
            # Three in ten are away; who is there has missed nothing afterwards.
            present = [each for each in devices if random.random() > 0.3] or devices[:1]
            for device in random.permutation(np.array(present, dtype=object)):
                device.catch_up(coordinator.updates(device.step))
                report = device.measure()
                assert coordinator.submit(report) and not coordinator.submit(report)
                late.append(report)
            coordinator.close_step()
            assert not coordinator.submit(late[-1])
            if coordinator.step % 20 == 0:
                for device in devices:
                    device.catch_up(coordinator.updates(device.step))
                    coordinator.confirm(device.step, device.state_sha256())
        newcomer = _device(tiny_pte, rows, 0)
        for device in (*devices, newcomer):
            device.catch_up(coordinator.updates(device.step))
    assert len({device.state_sha256() for device in (*devices, newcomer)}) == 1
    # The journal is that of any run: replaying it gives the same state.
    replayed = open_pte(tiny_pte)
    assert rebuild(replayed, read_journal(tmp_path / "journal.bin"), None) == STEPS
    assert masters_sha256(replayed) == newcomer.state_sha256()
    losses = [
        row_losses(each, rows, lambda done, total: None, lambda: False) for each in (open_pte(tiny_pte), replayed)
    ]
    assert losses[0] is not None and losses[1] is not None and losses[1].mean() < 0.9 * losses[0].mean()


def test_devices_are_one_device_with_all_rows(
    devices: list[FederatedDevice],
    rows: list[Row],
    tiny_pte: Path,
    tmp_path: Path,
    shared: Shared,
    tokenizer_blob: bytes,
) -> None:
    """The oracle is an ordinary run of a program with D times the batch, on the same rows."""
    size = MANIFEST.batch_size
    manifest = replace(MANIFEST, batch_size=size * DEVICES)
    large = open_pte(shared.once("federated.pte", lambda path: build_pte(path, manifest, tokenizer_blob)))
    trainer = PrgeTrainer(large, find_estimator("norm"), eps=EPS, seed=SEED)
    own = [rows[number::DEVICES] for number in range(DEVICES)]
    with _coordinator(tmp_path / "journal.bin", open_pte(tiny_pte)) as coordinator:
        for step in range(1, 21):
            for device in devices:
                device.catch_up(coordinator.updates(device.step))
                coordinator.submit(device.measure())
            update = coordinator.close_step()
            chosen = [
                own[number][index]
                for number in range(DEVICES)
                for index in step_indices(len(own[number]), size, number, step).tolist()
            ]
            result = trainer.step(training_batch(chosen, np.arange(len(chosen)), large.manifest), update.lr)
            np.testing.assert_allclose(update.g, result.g, rtol=2e-3, atol=2e-4)
    trainer.flush()
    devices[0].catch_up(coordinator.updates(devices[0].step))
    for name, expected in large.read_state().items():
        np.testing.assert_allclose(devices[0].program.read_state()[name], expected, rtol=1e-3, atol=1e-5)


def test_one_device_is_an_ordinary_run_bit_for_bit(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    device = FederatedDevice("only", open_pte(tiny_pte), rows, seed=SEED, eps=EPS, order=SEED)
    program = open_pte(tiny_pte)
    trainer = PrgeTrainer(program, find_estimator("norm"), eps=EPS, seed=SEED)
    with _coordinator(tmp_path / "journal.bin", program) as coordinator:
        while not coordinator.is_over:
            indices = step_indices(len(rows), program.manifest.batch_size, SEED, coordinator.step)
            trainer.step(training_batch(rows, indices, program.manifest), learning_rate(RATES, coordinator.step))
            coordinator.submit(device.measure())
            device.catch_up([coordinator.close_step()])
    trainer.flush()
    assert device.state_sha256() == masters_sha256(program)


@pytest.mark.parametrize("cut", [0, 5])
def test_a_killed_coordinator_goes_on(devices: list[FederatedDevice], tiny_pte: Path, tmp_path: Path, cut: int) -> None:
    def run(path: Path, kill_at: int) -> str:
        here = [_device(tiny_pte, each._rows * DEVICES, n) for n, each in enumerate(devices)]
        coordinator = _coordinator(path, open_pte(tiny_pte))
        while not coordinator.is_over:
            for number, device in enumerate(here):
                device.catch_up(coordinator.updates(device.step))
                coordinator.submit(device.measure())
                if coordinator.step == kill_at and number == 1:
                    kill_at = 0
                    # Nothing is closed: the file is as the system has it, perhaps with half a record.
                    with path.open("ab") as file:
                        file.write(b"\x01" * cut)
                    coordinator = _coordinator(path, open_pte(tiny_pte))
                    break
            else:
                coordinator.close_step()
        here[0].catch_up(coordinator.updates(here[0].step))
        return here[0].state_sha256()

    assert run(tmp_path / "killed.bin", 30) == run(tmp_path / "whole.bin", 0)
    assert (tmp_path / "killed.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()


def test_a_poisoner_moves_the_mean_and_not_the_median(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    def trained(merge: str, is_poisoned: bool) -> float:
        here = [_device(tiny_pte, rows, number) for number in range(DEVICES)]
        with _coordinator(tmp_path / f"{merge}-{is_poisoned}.bin", open_pte(tiny_pte), merge) as coordinator:
            while not coordinator.is_over:
                for device in here:
                    device.catch_up(coordinator.updates(device.step))
                    report = device.measure()
                    if is_poisoned and device is here[-1]:
                        report = replace(report, differences=-1000 * report.differences)
                    coordinator.submit(report)
                coordinator.close_step()
        here[0].catch_up(coordinator.updates(here[0].step))
        losses = row_losses(here[0].program, rows, lambda done, total: None, lambda: False)  # type: ignore[arg-type]
        assert losses is not None
        return float(losses.mean())

    start = row_losses(open_pte(tiny_pte), rows, lambda done, total: None, lambda: False)
    assert start is not None
    assert trained("mean", is_poisoned=True) > start.mean()
    assert trained("median", is_poisoned=True) < 0.92 * start.mean()


def test_local_steps_merge_to_the_same_bits_everywhere(tiny_pte: Path, rows: list[Row]) -> None:
    programs = [open_pte(tiny_pte) for _ in range(2)]
    rates = [learning_rate(RATES, step) for step in range(1, 11)]

    def contribution(number: int, weight: float) -> Contribution:
        program, own = programs[number], rows[number::2]
        size = program.manifest.batch_size
        batches = [
            training_batch(own, step_indices(len(own), size, number, step), program.manifest) for step in range(1, 11)
        ]
        trainer = PrgeTrainer(program, find_estimator("norm"), eps=EPS, seed=100 + number)
        return train_locally(f"device {number}", trainer, batches, seed=100 + number, weight=weight, lr=rates)

    snapshot = programs[0].read_state()
    # Alone, a device ends where its own steps led.
    alone = contribution(0, 1.0)
    local = masters_sha256(programs[0])
    merge_locally(programs[0], snapshot, [alone])
    assert masters_sha256(programs[0]) == local
    programs[0].write_state(snapshot)
    both = [contribution(0, 0.5), contribution(1, 0.5)]
    for program, order in zip(programs, (both, both[::-1]), strict=True):
        merge_locally(program, snapshot, order)
    assert masters_sha256(programs[0]) == masters_sha256(programs[1])
    # The merged state is the mean of the local ones, to rounding: their steps add up.
    change = [_change(tiny_pte, snapshot, [replace(each, weight=1.0)]) for each in both]
    merged = _change(tiny_pte, snapshot, both)
    np.testing.assert_allclose(merged, (change[0] + change[1]) / 2, rtol=1e-4, atol=1e-6)


def _change(path: Path, snapshot: dict[str, np.ndarray], contributions: list[Contribution]) -> np.ndarray:
    program = open_pte(path)
    merge_locally(program, snapshot, contributions)
    (after,), (before,) = program.read_state().values(), snapshot.values()
    return after - before


@pytest.mark.parametrize(
    ("differences", "num_rows", "message"),
    [
        ([np.nan, 0.0], 2, "not finite"),
        ([np.inf, 0.0], 2, "not finite"),
        ([0.0], 2, "has 1 numbers, and a step has q = 2"),
        ([0.0, 0.0], 0, "is of 0 rows"),
    ],
)
def test_reports_that_cannot_be_used_are_refused_by_name(
    tiny_pte: Path, tmp_path: Path, differences: list[float], num_rows: int, message: str
) -> None:
    with _coordinator(tmp_path / "journal.bin", open_pte(tiny_pte)) as coordinator:
        report = Report(device="phone 7", step=1, num_rows=num_rows, differences=np.array(differences))
        with pytest.raises(DataError, match=f"{message}.*phone 7"):
            coordinator.submit(report)
        with pytest.raises(UsageError, match="no device has reported in step 1"):
            coordinator.close_step()


def test_what_does_not_fit_is_refused(
    devices: list[FederatedDevice], tiny_pte: Path, gradient_pte: Path, rows: list[Row], tmp_path: Path
) -> None:
    path = tmp_path / "journal.bin"
    with _coordinator(path, open_pte(tiny_pte)) as coordinator:
        coordinator.submit(devices[0].measure())
        update = coordinator.close_step()
        coordinator.confirm(1, "ab" * 32)
        with pytest.raises(DataError, match="after step 1 differs from that of the others"):
            coordinator.confirm(1, "cd" * 32)
    with pytest.raises(UsageError, match="the journal is of another run"):
        _coordinator(path, open_pte(tiny_pte), seed=9)
    with pytest.raises(UsageError, match="step 1 is missing"):
        devices[1].catch_up([replace(update, step=2)])
    with pytest.raises(UsageError, match="there is no merge 'sum'"):
        _coordinator(tmp_path / "other.bin", open_pte(tiny_pte), "sum")
    with pytest.raises(UsageError, match="--method prge"):
        FederatedDevice("d", open_pte(gradient_pte), rows, seed=SEED, eps=EPS)


@pytest.mark.parametrize("name", MERGES)
def test_the_order_of_reports_does_not_matter(name: str) -> None:
    random = np.random.default_rng(1)
    values, weights = random.normal(size=(10, 4)), random.integers(1, 9, 10).astype(np.float64)
    from prgec.runtime.federated.merge import merged

    reports = [
        Report(device=f"{n:02}", step=1, num_rows=int(weight), differences=value)
        for n, (value, weight) in enumerate(zip(values, weights, strict=True))
    ]
    found = merged(reports, MERGES[name])
    np.testing.assert_array_equal(found, merged(reports[::-1], MERGES[name]))
    expected = {
        "mean": np.average(values, axis=0, weights=weights),
        "median": np.median(values, axis=0),
        "trimmed": np.sort(values, axis=0)[2:8].mean(axis=0),
    }
    np.testing.assert_allclose(found, expected[name], rtol=1e-12)

"""Devices that exchange q numbers a step learn like one device with all rows, and keep bit-identical states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prgec.core.data.batches import step_indices, training_batch
from prgec.core.data.dataset import Dataset
from prgec.core.data.encode import Row
from prgec.core.formats.adapter import masters_sha256
from prgec.core.formats.journal import read_journal
from prgec.errors import DataError, ProgramError, UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.coordinator import Coordinator
from prgec.runtime.federated.device import FederatedDevice
from prgec.runtime.federated.merge import MERGES, Report, merged
from prgec.runtime.runs.resume import rebuild
from prgec.runtime.training.estimators import find_estimator
from prgec.runtime.training.prge_trainer import Estimation, PrgeTrainer
from prgec.runtime.training.schedules import learning_rate
from tests.federated.fleet import DEVICES, EPS, RATES, SEED, STEPS, coordinator, device, mean_loss, read_rows
from tests.shared import Shared
from tests.tiny_program import MANIFEST, build_pte


@pytest.fixture
def rows(tiny_pte: Path, train_data: Dataset) -> list[Row]:
    return read_rows(tiny_pte, train_data)


@pytest.fixture
def devices(tiny_pte: Path, rows: list[Row]) -> list[FederatedDevice]:
    return [device(tiny_pte, rows, number) for number in range(DEVICES)]


def _measured(server: Coordinator, each: FederatedDevice) -> Report:
    each.catch_up(server.updates(each.step))
    return each.measure()


def test_states_are_equal_whatever_is_lost_or_comes_twice(
    devices: list[FederatedDevice], rows: list[Row], tiny_pte: Path, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    late: list[Report] = []
    with coordinator(tmp_path / "journal.bin", open_pte(tiny_pte)) as server:
        while not server.is_over:
            # Three in ten are away; whoever is there has missed nothing afterwards.
            present = [each for each in devices if random.random() > 0.3] or devices[:1]
            for each in random.permutation(np.array(present, dtype=object)):
                report = _measured(server, each)
                assert server.submit(report) and not server.submit(report)
                late.append(report)
            server.close_step()
            assert not server.submit(late[-1])
            if server.step % 20 == 0:
                for each in devices:
                    each.catch_up(server.updates(each.step))
                    server.confirm(each.step, each.state_sha256(), each.name)
        newcomer = device(tiny_pte, rows, 0)
        for each in (*devices, newcomer):
            each.catch_up(server.updates(each.step))
    assert len({each.state_sha256() for each in (*devices, newcomer)}) == 1
    # The journal is that of any run: replaying it gives the same state.
    replayed = open_pte(tiny_pte)
    assert rebuild(replayed, read_journal(tmp_path / "journal.bin"), None) == STEPS
    assert masters_sha256(replayed) == newcomer.state_sha256()
    assert mean_loss(replayed, rows) < 0.9 * mean_loss(open_pte(tiny_pte), rows)


def _sized(shared: Shared, size: int, tokenizer: bytes) -> Path:
    manifest = replace(MANIFEST, batch_size=size)
    return shared.once(f"federated-{size}.pte", lambda path: build_pte(path, manifest, tokenizer))


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 4)])
def test_devices_are_one_device_with_all_rows(
    sizes: tuple[int, ...], rows: list[Row], tiny_pte: Path, tmp_path: Path, shared: Shared, tokenizer_blob: bytes
) -> None:
    """The oracle is an ordinary run of a program with the batch of all devices, on the same rows."""
    large = open_pte(_sized(shared, sum(sizes), tokenizer_blob))
    trainer = PrgeTrainer(large, Estimation(estimator=find_estimator("norm"), eps=EPS, seed=SEED))
    here = [device(_sized(shared, size, tokenizer_blob), rows, n, len(sizes)) for n, size in enumerate(sizes)]
    with coordinator(tmp_path / "journal.bin", open_pte(tiny_pte), batch_size=max(sizes)) as server:
        for step in range(1, 21):
            for each in here:
                server.submit(_measured(server, each))
            update = server.close_step()
            chosen = [
                each.rows[index]
                for each, size in zip(here, sizes, strict=True)
                for index in step_indices(len(each.rows), size, each.order, step).tolist()
            ]
            result = trainer.step(training_batch(chosen, np.arange(len(chosen)), large.manifest), update.lr)
            np.testing.assert_allclose(update.g, result.g, rtol=2e-3, atol=2e-4)
    trainer.flush()
    for each in here:
        each.catch_up(server.updates(each.step))
        for name, expected in large.read_state().items():
            np.testing.assert_allclose(each.program.read_state()[name], expected, rtol=1e-3, atol=1e-5)
    assert len({each.state_sha256() for each in here}) == 1


def test_one_device_is_an_ordinary_run_bit_for_bit(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    only = FederatedDevice("only", open_pte(tiny_pte), rows, seed=SEED, eps=EPS, order=SEED)
    program = open_pte(tiny_pte)
    trainer = PrgeTrainer(program, Estimation(estimator=find_estimator("norm"), eps=EPS, seed=SEED))
    with coordinator(tmp_path / "journal.bin", program) as server:
        while not server.is_over:
            indices = step_indices(len(rows), program.manifest.batch_size, SEED, server.step)
            trainer.step(training_batch(rows, indices, program.manifest), learning_rate(RATES, server.step))
            server.submit(only.measure())
            only.catch_up([server.close_step()])
    trainer.flush()
    assert only.state_sha256() == masters_sha256(program)


def test_a_device_returns_with_its_state_and_another_joins_with_it(
    devices: list[FederatedDevice], rows: list[Row], tiny_pte: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "device.safetensors"
    with coordinator(tmp_path / "journal.bin", open_pte(tiny_pte)) as server:
        for step in range(1, 31):
            server.submit(_measured(server, devices[0]))
            server.close_step()
            if step == 20:
                devices[0].save(kept)
        returned, newcomer = (device(tiny_pte, rows, number) for number in (0, 1))
        for each in (returned, newcomer):
            each.restore(kept)
            assert each.step == 19  # The update of the step that it measured last came later.
            each.catch_up(server.updates(each.step))
        devices[0].catch_up(server.updates(devices[0].step))
    assert devices[0].state_sha256() == returned.state_sha256() == newcomer.state_sha256()
    kept.write_bytes(kept.read_bytes()[:-3])
    with pytest.raises(ProgramError, match="not an adapter"):
        newcomer.restore(kept)
    assert newcomer.step == 30


def test_hashes_are_due_every_hundred_steps(tiny_pte: Path, rows: list[Row]) -> None:
    each = device(tiny_pte, rows, 0)
    due = []
    for each.step in range(0, 301):
        due += [each.step] if each.is_due else []
    assert due == [0, 100, 200, 300]


@pytest.mark.parametrize("cut", [0, 5])
def test_a_killed_coordinator_goes_on(rows: list[Row], tiny_pte: Path, tmp_path: Path, cut: int) -> None:
    def run(path: Path, kill_at: int) -> str:
        here = [device(tiny_pte, rows, n) for n in range(DEVICES)]
        server = coordinator(path, open_pte(tiny_pte))
        while not server.is_over:
            for number, each in enumerate(here):
                server.submit(_measured(server, each))
                if server.step == kill_at and number == 1:
                    kill_at = 0
                    # Nothing is closed: the file is as the system has it, perhaps with half a record.
                    with path.open("ab") as file:
                        file.write(b"\x01" * cut)
                    server = coordinator(path, open_pte(tiny_pte))
                    break
            else:
                server.close_step()
        here[0].catch_up(server.updates(here[0].step))
        return here[0].state_sha256()

    assert run(tmp_path / "killed.bin", 30) == run(tmp_path / "whole.bin", 0)
    assert (tmp_path / "killed.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()


def test_a_poisoner_moves_the_mean_and_not_the_median(tiny_pte: Path, rows: list[Row], tmp_path: Path) -> None:
    def trained(merge: str) -> float:
        here = [device(tiny_pte, rows, number) for number in range(DEVICES)]
        with coordinator(tmp_path / f"{merge}.bin", open_pte(tiny_pte), merge) as server:
            while not server.is_over:
                for each in here:
                    report = _measured(server, each)
                    if each is here[-1]:
                        report = replace(report, differences=-1000 * report.differences)
                    server.submit(report)
                server.close_step()
        here[0].catch_up(server.updates(here[0].step))
        return mean_loss(here[0].program, rows)

    start = mean_loss(open_pte(tiny_pte), rows)
    assert trained("mean") > start
    assert trained("median") < 0.92 * start


@pytest.mark.parametrize(
    ("differences", "num_rows", "message"),
    [
        ([np.nan, 0.0], 2, "not finite"),
        ([np.inf, 0.0], 2, "not finite"),
        # Finite, but not what is computed from it.
        ([1e300, 0.0], 2, "not finite"),
        ([0.0], 2, "has 1 numbers, and a step has q = 2"),
        ([0.0, 0.0], 0, "is of 0 rows; expected 1 to 2"),
        # Claims all the weight.
        ([0.0, 0.0], 10**9, "is of 1000000000 rows"),
    ],
)
def test_reports_that_cannot_be_used_are_refused_by_name(
    tiny_pte: Path, tmp_path: Path, differences: list[float], num_rows: int, message: str
) -> None:
    with coordinator(tmp_path / "journal.bin", open_pte(tiny_pte)) as server:
        report = Report(device="phone 7", step=1, num_rows=num_rows, differences=np.array(differences))
        with pytest.raises(DataError, match=f"{message}.*phone 7"):
            server.submit(report)
        with pytest.raises(UsageError, match="no device has reported in step 1"):
            server.close_step()


@pytest.mark.parametrize("estimator", ["plain", "norm", "std"])
def test_the_largest_report_leaves_a_journal_that_can_be_read(tiny_pte: Path, tmp_path: Path, estimator: str) -> None:
    path = tmp_path / "journal.bin"
    with coordinator(path, open_pte(tiny_pte), estimator=estimator) as server:
        server.submit(Report(device="a", step=1, num_rows=2, differences=np.array([1e30, -1e30])))
        assert np.isfinite(server.close_step().g).all()
    assert len(read_journal(path).steps) == 1


def test_limits_of_the_header_hold(tiny_pte: Path, tmp_path: Path) -> None:
    with coordinator(tmp_path / "journal.bin", open_pte(tiny_pte), estimator="plain", max_g=3.0) as server:
        server.submit(Report(device="a", step=1, num_rows=2, differences=np.array([1e30, 0.01])))
        np.testing.assert_allclose(server.close_step().g, [3.0, 0.1])


def test_programs_that_do_not_fit_are_refused(
    devices: list[FederatedDevice], tiny_pte: Path, gradient_pte: Path, rows: list[Row], tmp_path: Path
) -> None:
    with coordinator(tmp_path / "journal.bin", open_pte(tiny_pte)) as server:
        server.submit(devices[0].measure())
        update = server.close_step()
    with pytest.raises(UsageError, match="step 1 is missing"):
        devices[1].catch_up([replace(update, step=2)])
    with pytest.raises(UsageError, match="there is no merge 'sum'"):
        coordinator(tmp_path / "other.bin", open_pte(tiny_pte), "sum")
    with pytest.raises(UsageError, match="--method prge"):
        FederatedDevice("d", open_pte(gradient_pte), rows, seed=SEED, eps=EPS)


@pytest.mark.parametrize("name", MERGES)
def test_the_order_of_reports_does_not_matter(name: str) -> None:
    random = np.random.default_rng(1)
    values, weights = random.normal(size=(10, 4)), random.integers(1, 9, 10).astype(np.float64)
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

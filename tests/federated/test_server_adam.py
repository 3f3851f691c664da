"""FedAdam on the server: the paper's numbers, learning, and a server that is killed between two files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prgec.core.data.dataset import Dataset
from prgec.core.formats.adapter import masters_sha256
from prgec.errors import DataError, UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.federated.open import Fleet
from prgec.runtime.federated.options import FleetOptions
from prgec.runtime.federated.server_adam import ServerAdam
from tests.federated.fleet import mean_loss, read_rows
from tests.federated.loopback import Loopback, fleet_options, make_nodes

NAME = "head.lora_B"


def test_steps_are_those_of_algorithm_2(tmp_path: Path) -> None:
    """In plain numbers, one entry at a time."""
    random = np.random.default_rng(0)
    adam, state = ServerAdam(folder=tmp_path, lr=0.05), {NAME: random.normal(size=(2, 3)).astype(np.float32)}
    m, v, expected = [0.0] * 6, [0.0] * 6, state[NAME].reshape(-1).tolist()
    for number in range(1, 5):
        merged = {NAME: (state[NAME] + random.normal(0, 0.1, (2, 3))).astype(np.float32)}
        for i, (after, before) in enumerate(zip(merged[NAME].flat, state[NAME].flat, strict=True)):
            change = float(after) - float(before)
            m[i] = 0.9 * m[i] + 0.1 * change
            v[i] = 0.99 * v[i] + 0.01 * change * change
            expected[i] += 0.05 * m[i] / (math.sqrt(v[i]) + 1e-3)
        state = adam.step(number, state, merged)
        adam.forget_before(number)
        np.testing.assert_allclose(state[NAME].reshape(-1), expected, rtol=1e-5, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["server-adam-4.safetensors"]


@pytest.fixture
def options(gradient_pte: Path, tmp_path: Path) -> FleetOptions:
    made = fleet_options(gradient_pte, tmp_path, rounds=4, local_steps=5, lr=0.05)
    return replace(made, server_optimizer="adam", server_lr=0.1)


def _run(options: FleetOptions, train_data: Dataset, folder: Path) -> tuple[str, float]:
    rows = read_rows(options.program, train_data)
    with Fleet(options) as fleet:
        fleet.run(Loopback(make_nodes(options.program, rows, folder)))
        return masters_sha256(fleet.program), mean_loss(fleet.program, rows)


def test_it_learns_by_other_steps_than_the_mean(options: FleetOptions, train_data: Dataset, tmp_path: Path) -> None:
    found, loss = _run(options, train_data, tmp_path)
    start = mean_loss(open_pte(options.program), read_rows(options.program, train_data))
    assert loss < 0.9 * start
    (tmp_path / "mean").mkdir()
    other = replace(options, server_optimizer="none", out=tmp_path / "mean" / "server")
    assert _run(other, train_data, tmp_path / "mean")[0] != found


def test_a_server_that_is_killed_between_the_files_of_a_round_goes_on(
    options: FleetOptions, train_data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        """As if the process had ended."""

    (tmp_path / "whole").mkdir()
    whole = _run(replace(options, out=tmp_path / "whole" / "server"), train_data, tmp_path / "whole")
    for place in ("save_snapshot", "ServerAdam.forget_before"):
        with monkeypatch.context() as patch:
            calls = []

            def die(*arguments: object, calls: list[int] = calls) -> None:
                calls.append(1)
                raise Killed

            patch.setattr(f"prgec.runtime.federated.state_merger.{place}", die)
            with pytest.raises(Killed):
                _run(options, train_data, tmp_path)
            assert calls
    assert _run(options, train_data, tmp_path) == whole


def test_moments_that_are_gone_are_reported(options: FleetOptions, train_data: Dataset, tmp_path: Path) -> None:
    adam = ServerAdam(folder=tmp_path, lr=0.05)
    state = {NAME: np.zeros((2, 3), np.float32)}
    with pytest.raises(DataError, match="the moments of the server's optimiser are gone"):
        adam.step(3, state, state)
    adam.step(1, {"other": state[NAME]}, {"other": state[NAME]})
    with pytest.raises(DataError, match="are of other sites"):
        adam.step(2, state, state)


def test_a_program_that_shares_steps_has_no_optimiser_of_the_server(tiny_pte: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="--server-optimizer is not for prge"),
        Fleet(replace(fleet_options(tiny_pte, tmp_path), server_optimizer="adam")),
    ):
        pass
    with pytest.raises(UsageError, match=r"--server-lr is 0\.0; expected a number above 0"):
        replace(fleet_options(tiny_pte, tmp_path), server_lr=0.0).check()

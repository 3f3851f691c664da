"""Learning from shards: against a loop of its own in functional PyTorch, resumed, and ended early."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from prgec.core.data.batches import epoch_order
from prgec.core.formats.shards import Shard, ShardShape, narrow, pack_shard
from prgec.errors import DataError, UsageError
from prgec.serve.side.cache import Cache, read_cache
from prgec.serve.side.fit import fit, split
from prgec.serve.side.fit_options import FitOptions
from prgec.serve.side.network import AdditiveNetwork
from prgec.serve.side.progress import progress_path

SHAPE = ShardShape(program="ef" * 32, num_blocks=2, num_labels=1, width=8, num_classes=2)
OPTIONS = FitOptions(rank=4, epochs=4, lr=3e-3, batch_size=8, seed=5)


def write_shards(folder: Path, num_rows: int = 90, cuts: tuple[int, ...] = (40,), dtype: str = "f16") -> Path:
    """Rows whose difference is a function of the second block's output, cut into shards."""
    rng = np.random.default_rng(0)
    acts = rng.normal(size=(num_rows, 2, 1, 8)).astype(np.float32)
    dy = np.stack([np.tanh(acts[:, 1, :, 0]), -np.tanh(acts[:, 1, :, 0])], -1).astype(np.float32)
    ids = rng.integers(0, 256, (num_rows, 16), dtype=np.uint8)
    folder.mkdir()
    for number, rows in enumerate(np.split(np.arange(num_rows), cuts)):
        sent, scales = narrow(acts[rows], dtype, "here")
        shard = Shard(shape=SHAPE, ids=ids[rows], acts=sent, scales=scales, dy=dy[rows])
        (folder / f"shard-{number:05d}.safetensors").write_bytes(pack_shard(shard))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return read_cache(write_shards(tmp_path / "acts"))


def oracle(cache: Cache, options: FitOptions) -> list[float]:
    """Held-out errors of each epoch: the equations and AdamW written out over plain tensors."""
    w = {k: v.detach().clone() for k, v in AdditiveNetwork.new(cache.shape, options.rank, "rms", 5).named_parameters()}
    m, v = ({k: torch.zeros_like(t) for k, t in w.items()} for _ in range(2))
    acts = torch.from_numpy(cache.acts.astype(np.float32))
    dy = torch.from_numpy(cache.dy)
    held = int(len(acts) * options.held_out)

    def rms(x: torch.Tensor) -> torch.Tensor:
        return x / x.square().mean(-1, keepdim=True).sqrt()

    def forward(rows: torch.Tensor, p: dict[str, torch.Tensor]) -> torch.Tensor:
        h = rms(acts[rows, 0, 0])
        for i in range(2):
            mu = 1 / (1 + torch.exp(-p["alpha"][i]))
            s = rms(acts[rows, i, 0]) * (1 - mu) + h * mu
            h = s + F.gelu(s @ p["down"][i]) @ p["up"][i]
        return rms(h) @ p["head"].T

    errors, t = [], 0
    for epoch in range(1, options.epochs + 1):
        order = held + torch.from_numpy(epoch_order(len(acts) - held, options.seed, epoch).copy())
        for rows in order.split(options.batch_size):
            t += 1
            leaves = {k: x.clone().requires_grad_() for k, x in w.items()}
            loss = (forward(rows, leaves) - dy[rows, 0]).square().mean()
            grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
            for k, g in grads.items():
                m[k] = 0.9 * m[k] + 0.1 * g
                v[k] = 0.999 * v[k] + 0.001 * g * g
                step = (m[k] / (1 - 0.9**t)) / ((v[k] / (1 - 0.999**t)).sqrt() + 1e-8)
                w[k] = w[k] * (1 - options.lr * options.weight_decay) - options.lr * step
        rows = torch.arange(held)
        errors.append(float((forward(rows, w) - dy[rows, 0]).square().mean()))
    return errors


def test_learns_as_the_oracle_does(cache: Cache, tmp_path: Path) -> None:
    done = fit(cache, tmp_path / "side.safetensors", OPTIONS)
    found = [epoch.held_out for epoch in done.epochs]
    np.testing.assert_allclose(found, oracle(cache, OPTIONS), rtol=1e-3)
    assert done.epochs[-1].loss < 0.9 * done.epochs[0].loss
    assert done.best_epoch == int(np.argmin(found)) + 1 and not done.interrupted
    assert (done.num_rows, done.num_held_out) == (81, 9)


def test_how_rows_were_cut_into_shards_changes_nothing(cache: Cache, tmp_path: Path) -> None:
    other = read_cache(write_shards(tmp_path / "others", cuts=(1, 7, 60)))
    first, second = (fit(each, tmp_path / "s", OPTIONS).network.sha256 for each in (cache, other))
    assert first == second


def test_a_stopped_fit_goes_on_to_the_same_network(cache: Cache, tmp_path: Path) -> None:
    whole = fit(cache, tmp_path / "whole", OPTIONS)
    calls = iter([False, False, True])
    part = fit(cache, tmp_path / "parts", OPTIONS, should_stop=lambda: next(calls))
    assert part.interrupted and len(part.epochs) == 2
    rest = fit(cache, tmp_path / "parts", OPTIONS, resume=True)
    assert rest.network.sha256 == whole.network.sha256
    assert [each.held_out for each in rest.epochs] == [each.held_out for each in whole.epochs]
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_finished_fit_is_not_made_again(cache: Cache, tmp_path: Path) -> None:
    first = fit(cache, tmp_path / "side", OPTIONS)
    seen: list[object] = []
    again = fit(cache, tmp_path / "side", OPTIONS, resume=True, on_epoch=seen.append)
    assert not seen and again.network.sha256 == first.network.sha256


def test_resuming_something_else_is_refused(cache: Cache, tmp_path: Path) -> None:
    fit(cache, tmp_path / "side", replace(OPTIONS, epochs=1))
    with pytest.raises(UsageError, match="the fit to resume used other shards or other options"):
        fit(cache, tmp_path / "side", replace(OPTIONS, epochs=2), resume=True)
    assert fit(cache, tmp_path / "side", replace(OPTIONS, epochs=2)).epochs


def test_a_damaged_file_to_resume_from_is_reported(cache: Cache, tmp_path: Path) -> None:
    fit(cache, tmp_path / "side", replace(OPTIONS, epochs=1))
    path = progress_path(tmp_path / "side")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="side.progress"):
        fit(cache, tmp_path / "side", replace(OPTIONS, epochs=1), resume=True)


def test_ends_early_and_keeps_the_best(cache: Cache, tmp_path: Path) -> None:
    """A rate that overshoots: later epochs are worse than an earlier one."""
    wild = replace(OPTIONS, lr=1.0, epochs=30, patience=2)
    done = fit(cache, tmp_path / "side", wild)
    errors = [epoch.score for epoch in done.epochs]
    assert len(errors) < 30 and done.best_epoch == int(np.argmin(errors)) + 1 == len(errors) - 2
    assert not done.interrupted
    short = fit(cache, tmp_path / "short", replace(wild, epochs=done.best_epoch))
    assert short.network.sha256 == done.network.sha256


def test_eight_bit_shards_learn_nearly_the_same(cache: Cache, tmp_path: Path) -> None:
    narrow_cache = read_cache(write_shards(tmp_path / "eight", dtype="i8"))
    wide, small = (fit(each, tmp_path / "s", OPTIONS).epochs[-1].score for each in (cache, narrow_cache))
    assert abs(wide - small) < 0.05 * wide


def test_split() -> None:
    learnt, held = split(100, 0.1)
    assert held.tolist() == list(range(10)) and learnt.tolist() == list(range(10, 100))
    assert [len(each) for each in split(20, 0.1)] == [20, 0]
    with pytest.raises(DataError, match="no rows to learn from"):
        split(0, 0.0)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"rank": 0}, "--rank"),
        ({"lr": float("nan")}, "--lr"),
        ({"held_out": 1.0}, "--held-out"),
        ({"norm": "l1"}, "--norm"),
        ({"patience": -1}, "--early-stop"),
        ({"weight_decay": -0.1}, "--weight-decay"),
        ({"seed": -1}, "--seed"),
        ({"epochs": 0}, "--epochs"),
    ],
)
def test_impossible_options(changes: dict[str, object], flag: str) -> None:
    with pytest.raises(UsageError, match=f"^{flag} is"):
        replace(OPTIONS, **changes).check()  # type: ignore[arg-type]


def test_shards_of_several_programs_are_refused(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "acts")
    shard = read_shard_of(folder)
    foreign = replace(shard, shape=replace(SHAPE, program="00" * 32))
    (folder / "shard-00009.safetensors").write_bytes(pack_shard(foreign))
    with pytest.raises(DataError, match="of another program, task or dtype"):
        read_cache(folder)


def test_rows_sent_twice_count_once(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "acts")
    before = read_cache(folder)
    first = folder / "shard-00000.safetensors"
    (folder / "shard-00009.safetensors").write_bytes(first.read_bytes())
    assert read_cache(folder).sha256() == before.sha256()
    shard = read_shard_of(folder)
    (folder / "shard-00009.safetensors").write_bytes(pack_shard(replace(shard, dy=-shard.dy)))
    with pytest.raises(DataError, match="two rows of one id have different answers"):
        read_cache(folder)


def read_shard_of(folder: Path) -> Shard:
    from prgec.core.formats.shards import read_shard

    return read_shard(folder / "shard-00000.safetensors")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the folder has no shards"):
        read_cache(tmp_path)

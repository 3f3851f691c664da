"""The network computes the equations: spelled out once more, position by position, in f64 numpy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from prgec.core.formats.shards import ShardShape
from prgec.core.formats.side_network import SideNetwork, read_network, unpack_network, weight_shapes, write_network
from prgec.serve.side.network import AdditiveNetwork

SHAPE = ShardShape(program="cd" * 32, num_blocks=3, num_labels=2, width=6, num_classes=4)


def random_network(norm: str, rank: int = 5, seed: int = 0) -> SideNetwork:
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(size=sizes).astype(np.float32) for name, sizes in weight_shapes(SHAPE, rank).items()}
    return SideNetwork(SHAPE, norm, weights)


def oracle(network: SideNetwork, acts: np.ndarray) -> np.ndarray:
    """`S = (1 - mu) A + mu h; h' = S + gelu(S Wd) Wu`, for one row and position at a time."""
    w = {name: array.astype(np.float64) for name, array in network.weights.items()}
    rows, blocks, labels, _ = acts.shape
    result = np.empty((rows, labels, len(w["head"])))
    for row in range(rows):
        for label in range(labels):
            seen = [acts[row, block, label].astype(np.float64) for block in range(blocks)]
            if network.norm == "rms":
                seen = [a / math.sqrt(sum(x * x for x in a) / len(a)) for a in seen]
            h = seen[0]
            for block, a in enumerate(seen):
                mu = 1 / (1 + math.exp(-w["alpha"][block]))
                s = (1 - mu) * a + mu * h
                inner = np.array([0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in s @ w["down"][block]])
                h = s + inner @ w["up"][block]
            result[row, label] = w["head"] @ (h / math.sqrt(sum(x * x for x in h) / len(h)))
    return result


@pytest.mark.parametrize("norm", ["rms", "none"])
def test_the_equations(norm: str) -> None:
    network = random_network(norm)
    acts = np.random.default_rng(1).normal(size=(7, 3, 2, 6)).astype(np.float32) * 3
    with torch.no_grad():
        found = AdditiveNetwork.of(network)(torch.from_numpy(acts)).numpy()
    np.testing.assert_allclose(found, oracle(network, acts), rtol=2e-5, atol=2e-5)


def test_norms_differ() -> None:
    acts = np.random.default_rng(1).normal(size=(2, 3, 2, 6)).astype(np.float32) * 3
    assert np.abs(oracle(random_network("rms"), acts) - oracle(random_network("none"), acts)).max() > 0.1


def test_a_new_network_adds_nothing_and_mixes_evenly() -> None:
    network = AdditiveNetwork.new(SHAPE, 5, "rms", seed=3)
    acts = torch.randn(4, 3, 2, 6)
    assert not network(acts).any()
    assert torch.equal(torch.sigmoid(network.alpha), torch.full((3,), 0.5))
    assert not network.up.any() and not network.head.any()
    assert abs(float(network.down.detach().std()) - 6**-0.5) < 0.15 * 6**-0.5 * 2
    assert torch.equal(network.down, AdditiveNetwork.new(SHAPE, 5, "rms", seed=3).down)
    assert not torch.equal(network.down, AdditiveNetwork.new(SHAPE, 5, "rms", seed=4).down)


def test_a_row_of_zeros_is_finite() -> None:
    network = AdditiveNetwork.of(random_network("rms"))
    assert torch.isfinite(network(torch.zeros(1, 3, 2, 6))).all()


def test_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    network = random_network("none")
    write_network(tmp_path / "side.safetensors", network)
    found = read_network(tmp_path / "side.safetensors")
    assert (found.shape, found.norm, found.rank, found.sha256) == (SHAPE, "none", 5, network.sha256)
    assert AdditiveNetwork.of(found).packed().sha256 == network.sha256
    assert replace(found, norm="rms").sha256 != network.sha256
    assert unpack_network(network.pack(), "here").pack() == network.pack()

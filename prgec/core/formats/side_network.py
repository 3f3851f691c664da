"""A side network as a file: what a server has learnt from shards, tied to the program they came from.

Letters: L blocks, K label positions, D width, C candidates, r rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prgec.core.contract.arrays import FloatArray
from prgec.core.formats.shards import MAX_SHARD_BYTES, SHARD_FORMAT, ShardShape
from prgec.core.formats.tensor_file import pack_tensors, unpack_tensors
from prgec.core.machine.files import write_atomic
from prgec.errors import DataError

NETWORK_FORMAT = "prgec-side-network-1"
NORMS = ("rms", "none")
_MAX_BYTES = 64 * MAX_SHARD_BYTES


@dataclass(frozen=True)
class SideNetwork:
    """The weights of an additive adapter network.

    Attributes:
        shape: Shape of the shards it was learnt from.
        norm: Normalisation of activations: `rms` divides each by its root mean square, `none` is the paper's.
        weights: `alpha` f32[L], `down` f32[L, D, r], `up` f32[L, r, D] and `head` f32[C, D].
    """

    shape: ShardShape
    norm: str
    weights: Mapping[str, FloatArray]

    @property
    def rank(self) -> int:
        """R."""
        return int(self.weights["down"].shape[-1])

    def pack(self) -> bytes:
        """Return it as a file; equal networks are equal bytes."""
        return pack_tensors(dict(self.weights), {**self.metadata(), "format": NETWORK_FORMAT})

    def metadata(self) -> dict[str, str]:
        """Return what it says of itself, as texts, but for the format."""
        return {**self.shape.to_metadata(), "norm": self.norm}

    @property
    def sha256(self) -> str:
        """Hash of the file."""
        return hashlib.sha256(self.pack()).hexdigest()


def weight_shapes(shape: ShardShape, rank: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a network's weights by name."""
    num_blocks, width = shape.num_blocks, shape.width
    return {
        "alpha": (num_blocks,),
        "down": (num_blocks, width, rank),
        "up": (num_blocks, rank, width),
        "head": (shape.num_classes, width),
    }


def write_network(path: Path, network: SideNetwork) -> None:
    """Write it, atomically."""
    write_atomic(path, network.pack())


def read_network(path: Path) -> SideNetwork:
    """Read a network.

    Raises:
        DataError: If the file is missing, damaged, or holds anything but a network of finite numbers.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"cannot read the side network: {error.strerror}", where=path) from error
    if len(data) > _MAX_BYTES:
        raise DataError("the side network is too large", where=path)
    return unpack_network(data, path)


def unpack_network(data: bytes, where: object) -> SideNetwork:
    """Check the bytes of a network.

    Raises:
        DataError: As `read_network`.
    """
    tensors, metadata = unpack_tensors(data, where)
    if metadata.get("format") != NETWORK_FORMAT:
        raise DataError("not a side network", where=where, hint="expected what prgec side fit writes")
    shape = ShardShape.from_metadata({**metadata, "format": SHARD_FORMAT}, where)
    norm = metadata.get("norm", "")
    down = tensors.get("down")
    rank = down.shape[-1] if down is not None and down.ndim == 3 else 0
    expected = weight_shapes(shape, rank)
    if norm not in NORMS or rank < 1 or {name: array.shape for name, array in tensors.items()} != expected:
        raise DataError("the side network's weights do not match its header", where=where)
    if any(array.dtype != np.float32 or not np.isfinite(array).all() for array in tensors.values()):
        raise DataError("the side network holds values that are not finite f32", where=where)
    return SideNetwork(shape, norm, tensors)

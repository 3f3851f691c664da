"""Shards of a folder as one set of rows, in an order that does not depend on how they were cut.

Letters: n rows, L blocks, K label positions, D width, C candidates.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prgec.core.contract.arrays import FloatArray, IntArray
from prgec.core.formats.shards import Shard, ShardShape, read_shard
from prgec.core.formats.tensor_file import AnyArray
from prgec.errors import DataError

SHARD_GLOB = "shard-*.safetensors"


@dataclass(frozen=True, kw_only=True)
class Cache:
    """Rows sorted by their ids, which are as good as random; activations stay as narrow as they travelled.

    Attributes:
        shape: Shape shared by all rows.
        ids: u8[n, 16].
        acts: f16[n, L, K, D], or i8.
        scales: f32[n, L, K] where `acts` are i8, else None.
        dy: f32[n, K, C].
    """

    shape: ShardShape
    ids: AnyArray
    acts: AnyArray
    scales: FloatArray | None
    dy: FloatArray

    def __len__(self) -> int:
        return len(self.ids)

    def values(self, rows: IntArray) -> FloatArray:
        """Return the activations of some rows as f32."""
        acts: FloatArray = self.acts[rows].astype(np.float32)
        return acts if self.scales is None else acts * self.scales[rows][..., None]

    def sha256(self) -> str:
        """Return a hash of everything a network is learnt from."""
        digest = hashlib.sha256(repr(self.shape).encode())
        for array in (self.ids, self.acts, self.scales, self.dy):
            if array is not None:
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def read_cache(folder: Path) -> Cache:
    """Read all shards of a folder.

    Raises:
        DataError: If there is none, one is damaged, they are of several programs, or two rows of one id differ.
    """
    paths = sorted(folder.glob(SHARD_GLOB))
    if not paths:
        raise DataError("the folder has no shards", where=folder, hint="prgec side emit writes them")
    shards = [read_shard(path) for path in paths]
    for path, shard in zip(paths, shards, strict=True):
        if shard.shape != shards[0].shape or (shard.scales is None) != (shards[0].scales is None):
            raise DataError("the shard is of another program, task or dtype than the first one", where=path)
    joined = _joined(shards)
    ids = np.ascontiguousarray(joined.ids).view("V16").ravel()
    order = np.array(sorted(range(len(ids)), key=lambda row: (ids[row].tobytes(), row)), dtype=np.int64)
    is_first = np.ones(len(order), dtype=bool)
    for place in range(1, len(order)):
        row, before = order[place], order[place - 1]
        if ids[row] == ids[before]:
            is_first[place] = False
            if not np.array_equal(joined.dy[row], joined.dy[before]):
                raise DataError("two rows of one id have different answers", where=folder)
    rows = order[is_first]
    scales = None if joined.scales is None else joined.scales[rows]
    return Cache(shape=joined.shape, ids=joined.ids[rows], acts=joined.acts[rows], scales=scales, dy=joined.dy[rows])


def _joined(shards: list[Shard]) -> Cache:
    scales = [shard.scales for shard in shards if shard.scales is not None]
    return Cache(
        shape=shards[0].shape,
        ids=np.concatenate([shard.ids for shard in shards]),
        acts=np.concatenate([shard.acts for shard in shards]),
        scales=np.concatenate(scales) if scales else None,
        dy=np.concatenate([shard.dy for shard in shards]),
    )

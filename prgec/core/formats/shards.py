"""The data of rows that a device sends and a server keeps: activations, differences of outputs, and no text.

A shard is a safetensors file with `id` u8[n, 16], `acts` f16[n, L, K, D], or i8 with `scales` f32[n, L, K], and `dy`
f32[n, K, C]; metadata are the format, the hash of the program, L, K, D, C and what `dy` is from. docs/side.md.

Letters: n rows, L blocks, K label positions, D width, C candidates.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from prgec.core.contract.arrays import FloatArray
from prgec.core.formats.tensor_file import AnyArray, pack_tensors, unpack_tensors
from prgec.errors import DataError

ByteArray: TypeAlias = npt.NDArray[np.uint8]

SHARD_FORMAT = "prgec-side-shard-1"
MAX_SHARD_BYTES = 64 << 20
ID_BYTES = 16
DTYPES = ("f16", "i8")
# Base of the differences: the model's scores of the candidates, or those of a head that the device alone has.
CANDIDATES, SECRET = "candidates", "secret"
Y_PRE = (CANDIDATES, SECRET)
_MAX_SIZES = {"num_blocks": 1 << 12, "num_labels": 1 << 8, "width": 1 << 17, "num_classes": 1 << 10}
_MOST_I8 = 127
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, kw_only=True)
class ShardShape:
    """The shape shared by all shards of a data set.

    Attributes:
        program: Hash of what the activations depend on besides the rows.
        num_blocks: L.
        num_labels: K.
        width: D.
        num_classes: C.
        y_pre: Base of the differences, a row of `Y_PRE`.
    """

    program: str
    num_blocks: int
    num_labels: int
    width: int
    num_classes: int
    y_pre: str = CANDIDATES

    def to_metadata(self) -> dict[str, str]:
        """Return it as texts."""
        return {"format": SHARD_FORMAT, **{key: str(value) for key, value in asdict(self).items()}}

    @classmethod
    def from_metadata(cls, metadata: dict[str, str], where: object) -> ShardShape:
        """Parse and check it.

        Raises:
            DataError: If something is missing or impossible.
        """
        if metadata.get("format") != SHARD_FORMAT:
            raise DataError(
                f"not a shard: its format is {str(metadata.get('format'))[:40]!r}, not {SHARD_FORMAT!r}", where=where
            )
        program = metadata.get("program", "")
        if len(program) != 64 or not set(program) <= _HEX:
            raise DataError("the shard names no program", where=where)
        y_pre = metadata.get("y_pre", "")
        if y_pre not in Y_PRE:
            raise DataError(f"the shard's y_pre is {y_pre[:40]!r}; expected {' or '.join(Y_PRE)}", where=where)
        sizes = {}
        for name, most in _MAX_SIZES.items():
            text = metadata.get(name, "")
            if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
                raise DataError(f"the shard's {name} is {text[:40]!r}; expected 1 to {most}", where=where)
            sizes[name] = int(text)
        return cls(program=program, y_pre=y_pre, **sizes)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Rows of one file.

    Attributes:
        shape: Shape shared with the rows of other files.
        ids: u8[n, 16], the rows; only the device can map them to texts.
        acts: f16[n, L, K, D], or i8.
        scales: f32[n, L, K] where `acts` are i8, else None.
        dy: f32[n, K, C], the outputs that a side network learns.
    """

    shape: ShardShape
    ids: ByteArray
    acts: AnyArray
    scales: FloatArray | None
    dy: FloatArray

    def values(self) -> FloatArray:
        """Return the activations as f32[n, L, K, D]."""
        acts: FloatArray = self.acts.astype(np.float32)
        return acts if self.scales is None else acts * self.scales[..., None]


def narrow(acts: FloatArray, dtype: str, where: object) -> tuple[AnyArray, FloatArray | None]:
    """Return activations f32[n, L, K, D] as they travel, with their scales where they need some.

    Raises:
        DataError: If one is not finite, or too large for f16.
    """
    if dtype == "i8":
        scales = np.abs(acts).max(-1) / np.float32(_MOST_I8)
        divisors = np.where(scales > 0, scales, np.float32(1.0))[..., None]
        return np.rint(acts / divisors).astype(np.int8), scales.astype(np.float32)
    with np.errstate(over="ignore"):
        halves = acts.astype(np.float16)
    if not np.isfinite(halves).all():
        raise DataError("an activation is too large for f16", where=where, hint="use --dtype i8")
    return halves, None


def pack_shard(shard: Shard) -> bytes:
    """Return a shard as a file; equal shards are equal bytes."""
    tensors: dict[str, AnyArray] = {"id": shard.ids, "acts": shard.acts, "dy": shard.dy}
    if shard.scales is not None:
        tensors["scales"] = shard.scales
    return pack_tensors(tensors, shard.shape.to_metadata())


def read_shard(path: Path) -> Shard:
    """Read a shard.

    Raises:
        DataError: If the file is missing, too large, damaged, or holds anything but a shard of finite numbers.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SHARD_BYTES + 1)
    except OSError as error:
        raise DataError(f"cannot read the shard: {error.strerror}", where=path) from error
    return unpack_shard(data, path)


def unpack_shard(data: bytes, where: object) -> Shard:
    """Check the bytes of a shard.

    Args:
        data: All of it.
        where: Name of it in messages.

    Raises:
        DataError: As `read_shard`.
    """
    if len(data) > MAX_SHARD_BYTES:
        raise DataError(f"the shard is larger than {MAX_SHARD_BYTES >> 20} MiB", where=where)
    tensors, metadata = unpack_tensors(data, where)
    shape = ShardShape.from_metadata(metadata, where)
    scales = tensors.get("scales")
    ids, acts, dy = (tensors.get(name) for name in ("id", "acts", "dy"))
    if ids is None or acts is None or dy is None or len(tensors) != 3 + (scales is not None):
        raise DataError("a shard has the tensors id, acts and dy, and scales if they are i8", where=where)
    size = len(ids) if ids.ndim else 0
    block = (size, shape.num_blocks, shape.num_labels)
    expected = [
        (ids, np.uint8, (size, ID_BYTES)),
        (acts, np.float16 if scales is None else np.int8, (*block, shape.width)),
        (dy, np.float32, (size, shape.num_labels, shape.num_classes)),
        *([] if scales is None else [(scales, np.float32, block)]),
    ]
    if size == 0 or any(array.dtype != dtype or array.shape != sizes for array, dtype, sizes in expected):
        raise DataError("the types or shapes of the shard's tensors differ from its header", where=where)
    if not all(np.isfinite(array).all() for array, dtype, _ in expected if dtype != np.uint8):
        raise DataError("the shard holds values that are not finite", where=where)
    return Shard(shape=shape, ids=ids, acts=acts, scales=scales, dy=dy)

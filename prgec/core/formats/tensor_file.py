"""Safetensors files whose bytes follow from their content (docs/decisions/006-one-order.md), and a strict reader."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from prgec.errors import DataError

AnyArray: TypeAlias = npt.NDArray[Any]

# Tensors begin at a multiple of this many bytes from the start of the file.
_ALIGNMENT = 8
_MAX_HEADER_BYTES = 1 << 16
_MAX_RANK = 8
_DTYPES = {"F32": "<f4", "F16": "<f2", "I8": "|i1", "U8": "|u1"}
_NAMES = {np.dtype(spelled): name for name, spelled in _DTYPES.items()}


def pack_tensors(tensors: Mapping[str, AnyArray], metadata: Mapping[str, str]) -> bytes:
    """Return a file, tensors and metadata in the order of their names.

    Args:
        tensors: Arrays of f32, f16, i8 or u8 by name.
        metadata: Text values by name.
    """
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    parts, end = [], 0
    for name, array in sorted(tensors.items()):
        kind = _NAMES[array.dtype.newbyteorder("<")]
        parts.append(np.ascontiguousarray(array, dtype=_DTYPES[kind]).tobytes())
        start, end = end, end + len(parts[-1])
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def unpack_tensors(data: bytes, where: object) -> tuple[dict[str, AnyArray], dict[str, str]]:
    """Return copies of the tensors of a file, and its metadata.

    Args:
        data: All of it; what an attacker has made of it costs no more memory than it has bytes.
        where: Name of it in messages.

    Raises:
        DataError: If it is not such a file, cut short, or longer than its tensors.
    """
    header, body = _header(data, where)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise DataError("the file's metadata are not all texts", where=where)
    tensors: dict[str, AnyArray] = {}
    spans = []
    for name, entry in header.items():
        dtype, shape, start, end = _entry(name, entry, len(body), where)
        tensors[name] = np.frombuffer(body[start:end], dtype=dtype).reshape(shape).copy()
        spans.append((start, end))
    covered = 0
    for start, end in sorted(spans):
        if start != covered:
            raise DataError("the file's tensors overlap, or leave a gap", where=where)
        covered = end
    if covered != len(body):
        raise DataError(f"the file has {len(body)} bytes of tensors; its header says {covered}", where=where)
    return tensors, metadata


def _header(data: bytes, where: object) -> tuple[dict[str, Any], memoryview]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= size <= min(_MAX_HEADER_BYTES, len(data) - 8):
        raise DataError("not a safetensors file, or cut short", where=where)
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError) as error:
        raise DataError("the file's header is not JSON", where=where) from error
    if not isinstance(header, dict):
        raise DataError("the file's header is not an object", where=where)
    return header, memoryview(data)[8 + size :]


def _entry(name: str, entry: object, num_bytes: int, where: object) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape, start and end of one tensor, all of them checked."""
    bad = DataError(f"the file's tensor {name[:40]!r} is described wrongly", where=where)
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise bad
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2 or len(shape) > _MAX_RANK:
        raise bad
    start, end = offsets
    dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None or not start <= end <= num_bytes or math.prod(shape) * np.dtype(dtype).itemsize != end - start:
        raise bad
    return dtype, tuple(shape), start, end


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 40 for value in values)

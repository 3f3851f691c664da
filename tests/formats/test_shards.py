"""Shards: bytes that follow from content, and a reader that takes nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prgec.core.formats.shards import ID_BYTES, MAX_SHARD_BYTES, Shard, ShardShape, narrow, pack_shard, read_shard
from prgec.core.formats.shards import unpack_shard as unpack
from prgec.core.formats.tensor_file import pack_tensors, unpack_tensors
from prgec.errors import DataError

SHAPE = ShardShape(program="ab" * 32, num_blocks=3, num_labels=1, width=5, num_classes=2)


def make_shard(num_rows: int = 4, dtype: str = "f16", seed: int = 0) -> Shard:
    rng = np.random.default_rng(seed)
    acts = rng.normal(size=(num_rows, 3, 1, 5)).astype(np.float32)
    sent, scales = narrow(acts, dtype, "here")
    ids = rng.integers(0, 256, (num_rows, ID_BYTES), dtype=np.uint8)
    return Shard(
        shape=SHAPE, ids=ids, acts=sent, scales=scales, dy=rng.normal(size=(num_rows, 1, 2)).astype(np.float32)
    )


@pytest.mark.parametrize("dtype", ["f16", "i8"])
def test_safetensors_reads_what_is_written(dtype: str, tmp_path: Path) -> None:
    from safetensors import safe_open

    shard = make_shard(dtype=dtype)
    path = tmp_path / "shard.safetensors"
    path.write_bytes(pack_shard(shard))
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == SHAPE.to_metadata()
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    expected = {"id": shard.ids, "acts": shard.acts, "dy": shard.dy}
    expected |= {} if shard.scales is None else {"scales": shard.scales}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("dtype", ["f16", "i8"])
def test_round_trip_and_equal_bytes(dtype: str, tmp_path: Path) -> None:
    shard = make_shard(dtype=dtype)
    path = tmp_path / "shard.safetensors"
    path.write_bytes(pack_shard(shard))
    found = read_shard(path)
    assert found.shape == SHAPE
    assert pack_shard(found) == path.read_bytes() == pack_shard(make_shard(dtype=dtype))
    np.testing.assert_array_equal(found.values(), shard.values())


def test_reader_of_files_that_safetensors_wrote() -> None:
    from safetensors.numpy import save

    shard = make_shard()
    data = save({"id": shard.ids, "acts": shard.acts, "dy": shard.dy}, SHAPE.to_metadata())
    assert pack_shard(unpack(data, "here")) == pack_shard(shard)


def test_eight_bits_are_near_the_values() -> None:
    acts = np.random.default_rng(1).normal(size=(6, 3, 1, 5)).astype(np.float32) * 1e5
    acts[0, 0] = 0
    sent, scales = narrow(acts, "i8", "here")
    near = replace(make_shard(6), acts=sent, scales=scales).values()
    assert (np.abs(near - acts) <= np.abs(acts).max(-1, keepdims=True) / 254 * 1.001).all()
    assert not near[0, 0].any()


def test_an_activation_too_large_for_f16() -> None:
    with pytest.raises(DataError, match=r"too large for f16 \(here\). Hint: use --dtype i8"):
        narrow(np.full((1, 1, 1, 1), 1e6, dtype=np.float32), "f16", "here")


def _without(name: str) -> Callable[[dict, dict], None]:
    return lambda tensors, metadata: tensors.pop(name)


def _with(name: str, value: str) -> Callable[[dict, dict], None]:
    return lambda tensors, metadata: metadata.update({name: value})


def _set(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict, dict], None]:
    return lambda tensors, metadata: tensors.update({name: change(tensors[name])})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without("dy"), "a shard has the tensors id, acts and dy"),
        (_set("id", lambda x: x[:3]), "types or shapes of the shard"),
        (_set("acts", lambda x: x.astype(np.float32)), "types or shapes of the shard"),
        (_set("acts", lambda x: x[:, :2]), "types or shapes of the shard"),
        (_set("dy", lambda x: x[:, 0]), "types or shapes of the shard"),
        (_set("dy", lambda x: x * np.nan), "not finite"),
        (_set("acts", lambda x: x * np.float16("inf")), "not finite"),
        (lambda t, m: t.update({name: array[:0] for name, array in list(t.items())}), "types or shapes of the shard"),
        (lambda t, m: t.update(extra=t["dy"]), "a shard has the tensors"),
        (lambda t, m: t.update(scales=t["dy"]), "types or shapes of the shard"),
        (_with("format", "prgec-side-shard-2"), "its format is 'prgec-side-shard-2'"),
        (_with("program", "../../etc/passwd"), "names no program"),
        (_with("y_pre", "guess"), "y_pre is 'guess'"),
        (_with("width", "0"), "width is '0'; expected 1 to"),
        (_with("width", "1" * 5000), "width is '1111"),
        (_with("num_classes", "2.5"), "num_classes is '2.5'"),
        (_with("num_blocks", "٣"), "num_blocks is"),
    ],
)
def test_a_bad_shard_is_reported(spoil: Callable[[dict, dict], None], message: str) -> None:
    tensors, metadata = unpack_tensors(pack_shard(make_shard()), "here")
    spoil(tensors, metadata)
    with pytest.raises(DataError, match=message):
        unpack(pack_tensors(tensors, metadata), "here")


def _header(data: bytes) -> tuple[dict, bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _file(header: object, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


@pytest.mark.parametrize(
    "spoil",
    [
        lambda header, body: b"",
        lambda header, body: b"\xff" * 100,
        lambda header, body: _file(header, body[:-1]),
        lambda header, body: _file(header, body + b"\0"),
        lambda header, body: _file([], body),
        lambda header, body: _file(b"[" * 60_000, body),
        lambda header, body: _file(b"{}" + b" " * (1 << 17), body),
        lambda header, body: _file({**header, "__metadata__": 3}, body),
        lambda header, body: _file({**header, "dy": 3}, body),
        lambda header, body: _file({**header, "dy": {**header["dy"], "dtype": "BOOL"}}, body),
        lambda header, body: _file({**header, "dy": {**header["dy"], "dtype": []}}, body),
        lambda header, body: _file({**header, "dy": {**header["dy"], "shape": [1 << 62, 1 << 62]}}, body),
        lambda header, body: _file({**header, "dy": {**header["dy"], "shape": [-4, -1, 2]}}, body),
        lambda header, body: _file({**header, "dy": {**header["dy"], "shape": [True, 4, 2]}}, body),
        lambda header, body: _file({**header, "dy": {**header["dy"], "data_offsets": [0, 32]}}, body),
        lambda header, body: _file({**header, "dy": {**header["dy"], "data_offsets": [0]}}, body),
        lambda header, body: _file({**header, "dy": {**header["dy"], "data_offsets": [1 << 30, (1 << 30) + 32]}}, body),
    ],
)
def test_a_damaged_file_is_reported(spoil: Callable[[dict, bytes], bytes]) -> None:
    header, body = _header(pack_shard(make_shard()))
    with pytest.raises(DataError):
        unpack(spoil(header, body), "here")


def test_too_large_and_missing(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(MAX_SHARD_BYTES + 1)
    with pytest.raises(DataError, match="larger than 64 MiB"):
        read_shard(path)
    with pytest.raises(DataError, match="cannot read the shard: No such file"):
        read_shard(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "most"), [("num_blocks", 4096), ("num_labels", 256), ("width", 131072), ("num_classes", 1024)]
)
def test_sizes_have_a_limit(name: str, most: int) -> None:
    metadata = SHAPE.to_metadata()
    assert getattr(ShardShape.from_metadata({**metadata, name: str(most)}, "here"), name) == most
    for value in (str(most + 1), "0", "", "1" * 10):
        with pytest.raises(DataError, match=f"the shard's {name} is '{value}'; expected 1 to {most}"):
            ShardShape.from_metadata({**metadata, name: value}, "here")


@pytest.mark.parametrize("program", ["ab" * 31, "xy" * 32, ""])
def test_a_program_is_named_by_its_hash(program: str) -> None:
    with pytest.raises(DataError, match="names no program"):
        ShardShape.from_metadata({**SHAPE.to_metadata(), "program": program}, "here")


def test_values_from_a_file_are_cut_in_messages() -> None:
    for name in ("y_pre", "width", "format"):
        with pytest.raises(DataError) as error:
            ShardShape.from_metadata({**SHAPE.to_metadata(), name: "x" * 100}, "here")
        assert str(error.value).count("x") - str(error.value).count("ex") == 40


@pytest.mark.parametrize("name", ["id", "acts", "dy"])
def test_every_tensor_must_be_there(name: str) -> None:
    tensors, metadata = unpack_tensors(pack_shard(make_shard()), "here")
    for others in ([], [each for each in ("id", "acts", "dy") if each != name][:1]):
        left = {key: value for key, value in tensors.items() if key not in (name, *others)}
        with pytest.raises(DataError, match="a shard has the tensors"):
            unpack(pack_tensors(left, metadata), "here")


def test_small_and_empty_activations_keep_their_digits() -> None:
    acts = np.random.default_rng(1).normal(size=(6, 3, 1, 5)).astype(np.float32) * np.float32(1e-3)
    acts[0, 0] = 0
    with np.errstate(all="raise"):
        sent, scales = narrow(acts, "i8", "here")
    near = replace(make_shard(6), acts=sent, scales=scales).values()
    assert (np.abs(near - acts) <= np.abs(acts).max(-1, keepdims=True) / 254 * 1.001).all()
    assert np.abs(sent).max() == 127


def test_rows_have_ids_of_sixteen_bytes() -> None:
    tensors, metadata = unpack_tensors(pack_shard(make_shard()), "here")
    assert tensors["id"].shape == (4, 16)
    with pytest.raises(DataError, match="types or shapes"):
        unpack(pack_tensors({**tensors, "id": np.zeros((4, 17), np.uint8)}, metadata), "here")


def test_a_shard_of_the_most_bytes_is_not_too_large() -> None:
    with pytest.raises(DataError) as error:
        unpack(bytes(MAX_SHARD_BYTES), "here")
    assert "larger" not in str(error.value)

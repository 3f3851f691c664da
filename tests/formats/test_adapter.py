"""An adapter carries the trained masters to another process, and fits nothing but its own base."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from prgec.core.formats.adapter import adapter_metadata, load_adapter, masters, pack_adapter, save_adapter
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram

NAME = "head.lora_B"


@pytest.fixture
def trained(tiny_pte: Path) -> PteProgram:
    program = open_pte(tiny_pte)
    program.apply(np.array([3.0, -2.0], dtype=np.float32), 0.3, seed=1, step=2)
    return program


def test_round_trip(trained: PteProgram, tiny_pte: Path, tmp_path: Path) -> None:
    save_adapter(tmp_path / "a.safetensors", trained)
    fresh = open_pte(tiny_pte)
    load_adapter(tmp_path / "a.safetensors", fresh)
    assert fresh.state_sha256() == trained.state_sha256()
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_file_is_plain_safetensors(trained: PteProgram, tmp_path: Path) -> None:
    save_adapter(tmp_path / "a.safetensors", trained)
    with safe_open(tmp_path / "a.safetensors", framework="numpy") as file:
        assert list(file.keys()) == [NAME]
        assert file.get_tensor(NAME).shape == (4, 380)
        metadata = file.metadata()
    assert metadata["base_sha256"] == "ab" * 32
    assert (metadata["contract"], metadata["a_seed"], metadata["rank"], metadata["alpha"]) == ("1", "3", "4", "8.0")


def test_masters_of_dual_state_are_the_means_of_its_copies(trained: PteProgram) -> None:
    rng = np.random.default_rng(0)
    master = rng.standard_normal((4, 380)).astype(np.float32)
    z = 1e-2 * rng.standard_normal((2, 4, 380)).astype(np.float32)
    copies = np.stack([master + z, master - z], axis=1)
    np.testing.assert_allclose(masters({NAME: copies}, trained.manifest)[NAME], master, atol=1e-7)


def test_float_file_mode_follows_the_umask(trained: PteProgram, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    save_adapter(tmp_path / "a.safetensors", trained)
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"ab" * 32, b"cd" * 32, "its base_sha256 is ab.*, the program's is cd"),
        (b'"a_seed": 3', b'"a_seed": 4', "its a_seed is 3, the program's is 4"),
        (b'"alpha": 8.0', b'"alpha": 9.0', r"its alpha is 8\.0, the program's is 9\.0"),
        (b'"index": 0', b'"index": 1', "its targets is"),
    ],
)
def test_adapter_of_another_program(
    trained: PteProgram,
    patched_pte: Callable[[bytes, bytes], Path],
    tmp_path: Path,
    old: bytes,
    new: bytes,
    message: str,
) -> None:
    save_adapter(tmp_path / "a.safetensors", trained)
    other = open_pte(patched_pte(old, new))
    with pytest.raises(ProgramError, match=message):
        load_adapter(tmp_path / "a.safetensors", other)
    assert not other.read_state()[NAME].any()


def test_what_differs_fits_a_line(trained: PteProgram, tmp_path: Path) -> None:
    """However many layers a model has."""
    layers = [[f"model.layers.{n}.self_attn.q_proj", n] for n in range(200)]
    metadata = {**adapter_metadata(trained.manifest), "targets": json.dumps(layers)}
    save_file({}, tmp_path / "a.safetensors", metadata=metadata)
    with pytest.raises(
        ProgramError, match=r'its targets is \[\["model\.layers\.0.*\.\.\., the program\'s is \['
    ) as error:
        load_adapter(tmp_path / "a.safetensors", trained)
    assert len(str(error.value)) < 250 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"other": np.zeros((4, 380), np.float32)}, f"adapter's {NAME} is missing"),
        ({NAME: np.zeros((5, 380), np.float32)}, r"is float32\[5, 380\]; expected float32\[4, 380\]"),
        ({NAME: np.zeros((4, 380), np.float16)}, r"is float16\[4, 380\]"),
        ({NAME: np.full((4, 380), np.nan, np.float32)}, "not finite"),
    ],
)
def test_tensors_that_do_not_fit(
    trained: PteProgram, tmp_path: Path, tensors: dict[str, np.ndarray], message: str
) -> None:
    save_file(tensors, tmp_path / "a.safetensors", metadata=adapter_metadata(trained.manifest))
    before = trained.state_sha256()
    with pytest.raises(ProgramError, match=message):
        load_adapter(tmp_path / "a.safetensors", trained)
    assert trained.state_sha256() == before


def test_file_that_is_no_adapter(trained: PteProgram, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(ProgramError, match="no such adapter"):
        load_adapter(path, trained)
    path.write_bytes(b"text")
    with pytest.raises(ProgramError, match="not an adapter"):
        load_adapter(path, trained)
    save_file({NAME: np.zeros((4, 380), np.float32)}, path)
    with pytest.raises(ProgramError, match="its format is None"):
        load_adapter(path, trained)


def test_equal_content_is_equal_bytes(trained: PteProgram, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, numpy as np; from prgec.core.formats.adapter import pack_adapter;"
        "t = {k: np.full((2, 3), ord(k), np.float32) for k in 'ba'}; m = {k: k * 2 for k in 'hgfedcba'};"
        "sys.stdout.buffer.write(pack_adapter(t, m))"
    )
    # The hash seed of a process must not show.
    files = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)]
    assert files[0] == files[1]
    path = tmp_path / "a.safetensors"
    path.write_bytes(files[0])
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {key: key * 2 for key in "abcdefgh"}
        assert [float(file.get_tensor(name)[1, 2]) for name in ("a", "b")] == [97.0, 98.0]
    assert int.from_bytes(files[0][:8], "little") % 8 == 0


def test_tensors_begin_at_a_multiple_of_eight(trained: PteProgram, tmp_path: Path) -> None:
    """As safetensors writes it, so that a reader can map a file."""
    save_adapter(tmp_path / "a", trained)
    length = int.from_bytes((tmp_path / "a").read_bytes()[:8], "little")
    assert length % 8 == 0
    for names in (1, 2, 3, 4, 5):
        text = pack_adapter({}, {"n" * names: "x"})
        assert int.from_bytes(text[:8], "little") % 8 == 0 and len(text) == 8 + int.from_bytes(text[:8], "little")

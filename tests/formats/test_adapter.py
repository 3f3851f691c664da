"""An adapter carries the trained masters to another process, and fits nothing but its own base."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from prgec.core.contract.calls import StepInputs
from prgec.core.formats.adapter import (
    _where_they_part,
    adapter_metadata,
    identity,
    load_adapter,
    load_snapshot,
    masters,
    pack_adapter,
    read_adapter,
    save_adapter,
    save_snapshot,
)
from prgec.core.formats.lora_a import frozen_a
from prgec.core.formats.peft import PeftAdapter, write_peft
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from tests.tiny_gradient import GRADIENT_MANIFEST
from tests.tiny_program import MANIFEST

NAME = "head.lora_B"


@pytest.fixture
def trained(tiny_pte: Path) -> PteProgram:
    program = open_pte(tiny_pte)
    program.apply(StepInputs(g_q=np.array([3.0, -2.0], dtype=np.float32), lr=0.3, seed=1, step=2))
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


def test_a_program_is_told_apart_by_the_rules_of_its_steps() -> None:
    """Those of gradients stand in its pipeline; measured losses have theirs in the journal."""
    for manifest, is_apart in ((GRADIENT_MANIFEST, True), (MANIFEST, False)):
        one, other = (identity(replace(manifest, pipeline=text)) for text in ("a", "b"))
        assert (one != other) is is_apart
    assert identity(replace(MANIFEST, model="renamed")) == identity(MANIFEST)


def test_only_a_given_a_is_named(trained: PteProgram) -> None:
    assert "a_sha256" not in adapter_metadata(trained.manifest)
    assert adapter_metadata(replace(trained.manifest, a_sha256="ef" * 32))["a_sha256"] == "ef" * 32


def test_names_of_layers_are_kept_as_they_are() -> None:
    manifest = replace(MANIFEST, sites=(replace(MANIFEST.sites[0], name="café"),))
    assert adapter_metadata(manifest)["targets"] == '[["café", 0]]'


@pytest.mark.parametrize(("text", "step"), [("12", 12), (None, 0), ("-1", 0), ("x", 0), ("\u0663", 0), ("\u00b2", 0)])
def test_a_snapshot_is_of_a_step(gradient_pte: Path, tmp_path: Path, text: str | None, step: int) -> None:
    program, path = open_pte(gradient_pte), tmp_path / "snapshot"
    save_snapshot(path, program, 7)
    assert load_snapshot(path, program) == 7
    tensors, metadata = read_adapter(path)
    changed = {**metadata, "step": text} if text is not None else {k: v for k, v in metadata.items() if k != "step"}
    path.write_bytes(pack_adapter(tensors, changed))
    assert load_snapshot(path, program) == step


def test_a_snapshot_of_another_optimiser_is_refused(gradient_pte: Path, tmp_path: Path) -> None:
    program, path = open_pte(gradient_pte), tmp_path / "snapshot"
    save_snapshot(path, program, 7)
    tensors, metadata = read_adapter(path)
    path.write_bytes(pack_adapter({**tensors, "prge_optimizer": tensors["prge_optimizer"] + 1}, metadata))
    with pytest.raises(ProgramError, match="the optimiser's state is damaged"):
        load_snapshot(path, program)
    path.write_bytes(pack_adapter({k: v for k, v in tensors.items() if k != "prge_optimizer"}, metadata))
    with pytest.raises(ProgramError, match="the snapshot has no prge_optimizer: it is of another optimiser"):
        load_snapshot(path, program)


@pytest.fixture
def peft(trained: PteProgram) -> PeftAdapter:
    """The trained adapter as PEFT has it."""
    manifest, state = trained.manifest, masters(trained.read_state(), trained.manifest)
    return PeftAdapter(manifest.rank, manifest.alpha, {**frozen_a(manifest, {}), **state}, {})


def test_a_peft_adapter_of_the_same_a_is_loaded(
    trained: PteProgram, peft: PeftAdapter, tiny_pte: Path, tmp_path: Path
) -> None:
    for metadata in ({}, adapter_metadata(trained.manifest)):
        folder = tmp_path / f"peft-{len(metadata)}"
        write_peft(folder, replace(peft, metadata=metadata), "bag-of-words")
        fresh = open_pte(tiny_pte)
        load_adapter(folder, fresh)
        assert fresh.state_sha256() == trained.state_sha256()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": {"base_sha256": "cd" * 32}}, "its base_sha256 is cdcd"),
        ({"alpha": 9.0}, r"the PEFT adapter does not fit the program: its alpha is 9\.0, the program's is 8\.0"),
    ],
)
def test_a_peft_adapter_that_does_not_fit_is_refused(
    trained: PteProgram, peft: PeftAdapter, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_peft(tmp_path / "peft", replace(peft, **changes), "bag-of-words")
    with pytest.raises(ProgramError, match=message):
        load_adapter(tmp_path / "peft", trained)


def test_a_peft_adapter_of_another_a_is_refused(trained: PteProgram, peft: PeftAdapter, tmp_path: Path) -> None:
    name = "head.lora_A"
    write_peft(tmp_path / "peft", replace(peft, tensors={**peft.tensors, name: peft.tensors[name] + 1}), "base")
    with pytest.raises(ProgramError, match=f"the PEFT adapter's {name} is not the program's") as error:
        load_adapter(tmp_path / "peft", trained)
    assert f"Hint: compile with --lora-a {tmp_path / 'peft'}" in str(error.value)


@pytest.mark.parametrize(
    ("theirs", "ours", "shown"),
    [
        ("a" * 64, "b" * 64, ("a" * 64, "b" * 64)),
        ("a" * 65, "b" * 64, ("a" * 64 + "...", "b" * 64)),
        ("k" * 100 + "a" * 43, "k" * 100 + "b", ("..." + "k" * 21 + "a" * 43, "..." + "k" * 21 + "b")),
        ("k" * 100 + "a" * 44, "k" * 21 + "b", ("k" * 64 + "...", "k" * 21 + "b")),
    ],
)
def test_long_values_are_shown_where_they_part(theirs: str, ours: str, shown: tuple[str, str]) -> None:
    assert _where_they_part(theirs, ours) == shown

"""A .pte runs, shares its state between methods, and is refused with one clear line when it cannot."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from prgec.core.contract.calls import Batch, StepInputs
from prgec.core.contract.engine import state_sha256
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram

SEED = 11
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def program(tiny_pte: Path) -> PteProgram:
    return open_pte(tiny_pte)


UPDATE = StepInputs(g_q=np.ones(2, dtype=np.float32), lr=0.1, seed=SEED, step=1)


def _inputs(program: PteProgram, length: int = 7) -> Batch:
    rng = np.random.default_rng(0)
    manifest = program.manifest
    tokens = rng.integers(3, manifest.vocab_size, (manifest.num_rows, length))
    label_pos = np.full((manifest.num_rows, manifest.num_labels), length - 1)
    targets = rng.integers(3, manifest.vocab_size, (manifest.num_rows, manifest.num_labels))
    targets[:, 1] = -100
    return Batch(tokens, label_pos, targets)


def _zeros(program: PteProgram) -> np.ndarray:
    return np.zeros(program.manifest.q, dtype=np.float32)


@pytest.mark.parametrize("length", [2, 7, 24])
def test_follows_eager_over_steps(program: PteProgram, make_eager: Callable[[], nn.Module], length: int) -> None:
    model = make_eager()
    batch = _inputs(program, length)
    arrays = (batch.tokens_NT, batch.label_pos_NK, batch.targets_NK)
    g = _zeros(program)
    for step in range(1, 6):
        scalars = (torch.tensor(0.05), torch.tensor(1e-2), torch.tensor(SEED), torch.tensor(step))
        expected = model(*map(torch.from_numpy, arrays), torch.from_numpy(g), *scalars).detach().numpy()
        losses = program.forward(batch, StepInputs(g_q=g, lr=0.05, eps=1e-2, seed=SEED, step=step))
        np.testing.assert_allclose(losses, expected, rtol=2e-6)
        g = np.array([0.5, -1.5], dtype=np.float32) * step
    np.testing.assert_allclose(program.read_state()["head.lora_B"], model.head.lora_B.numpy(), rtol=1e-6, atol=1e-8)
    assert np.abs(program.read_state()["head.lora_B"]).max() > 0


def test_apply_does_what_forward_does_on_entry(tiny_pte: Path) -> None:
    batch = _inputs(open_pte(tiny_pte))
    update = StepInputs(g_q=np.array([0.5, -1.5], dtype=np.float32), lr=0.1, eps=1e-2, seed=SEED, step=4)
    by_forward, by_apply = open_pte(tiny_pte), open_pte(tiny_pte)
    by_forward.forward(batch, update)
    by_apply.apply(update)
    assert by_forward.state_sha256() == by_apply.state_sha256() != open_pte(tiny_pte).state_sha256()
    # The next forward of the flushed program sees the state the update left.
    after = StepInputs(g_q=_zeros(by_forward), lr=0.0, eps=1e-2, seed=SEED, step=5)
    np.testing.assert_array_equal(by_forward.forward(batch, after), by_apply.forward(batch, after))


def test_eps_zero_and_g_zero_change_nothing(program: PteProgram) -> None:
    program.apply(UPDATE)
    before = program.state_sha256()
    losses = program.forward(_inputs(program), StepInputs(g_q=_zeros(program), lr=0.3, seed=SEED, step=9))
    assert program.state_sha256() == before
    assert len(set(losses.tolist())) == program.manifest.num_rows


def test_two_open_programs_do_not_share_state(tiny_pte: Path) -> None:
    first, second = open_pte(tiny_pte), open_pte(tiny_pte)
    first.apply(UPDATE)
    assert not second.read_state()["head.lora_B"].any()


def test_state_round_trip_reaches_the_graph(tiny_pte: Path) -> None:
    trained, fresh = open_pte(tiny_pte), open_pte(tiny_pte)
    trained.apply(UPDATE)
    state = trained.read_state()
    fresh.write_state(state)
    assert state_sha256(state) == fresh.state_sha256() == trained.state_sha256()
    batch, no_step = _inputs(fresh), StepInputs.none(2)
    np.testing.assert_array_equal(fresh.forward(batch, no_step), trained.forward(batch, no_step))


def test_read_state_copies(program: PteProgram) -> None:
    program.read_state()["head.lora_B"][:] = 1.0
    assert not program.read_state()["head.lora_B"].any()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "head.lora_B is in only one of them"),
        ({"head.lora_B": np.zeros((4, 5), np.float32)}, r"float32\[4, 5\]; expected float32\[4, 380\]"),
        ({"head.lora_B": np.zeros((4, 380))}, r"float64\[4, 380\]; expected"),
    ],
)
def test_state_that_does_not_fit(program: PteProgram, state: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        program.write_state(state)


def test_tokenizer_comes_with_the_program(program: PteProgram) -> None:
    ids = program.tokenizer.encode("the film was great")
    assert ids[0] == program.tokenizer.bos_id
    assert program.tokenizer.decode(ids) == "the film was great"


def _cut(path: Path, tmp_path: Path, size_bytes: int) -> Path:
    target = tmp_path / "cut.pte"
    target.write_bytes(path.read_bytes()[:size_bytes])
    return target


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (0, "not an ExecuTorch program"),
        (30, "not an ExecuTorch program"),
        (5000, "cut short: 5000 of"),
        (-1, "cut short"),
    ],
)
def test_file_that_was_cut_short(tiny_pte: Path, tmp_path: Path, keep: int, message: str) -> None:
    size = keep if keep >= 0 else tiny_pte.stat().st_size - 4096
    with pytest.raises(ProgramError, match=message):
        open_pte(_cut(tiny_pte, tmp_path, size))


def test_damaged_flatbuffer(tiny_pte: Path, tmp_path: Path) -> None:
    raw = bytearray(tiny_pte.read_bytes())
    raw[64:4096] = b"\xff" * (4096 - 64)
    damaged = tmp_path / "damaged.pte"
    damaged.write_bytes(raw)
    with pytest.raises(ProgramError) as caught:
        open_pte(damaged)
    assert "damaged.pte" in str(caught.value)


def test_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "model.pte"
    path.write_text("this is a text file, long enough to hold a header of an ExecuTorch program")
    with pytest.raises(ProgramError, match="not an ExecuTorch program"):
        open_pte(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no such program"):
        open_pte(tmp_path / "none.pte")
    with pytest.raises(ProgramError, match="a folder, not a program"):
        open_pte(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"q": 2', b'"q": -', "manifest is not valid JSON"),
        (b'"q": 2', b'"q": 0', "has q = 0; expected an integer from 1"),
        (b'"alpha"', b'"alpaa"', "lacks a field: .*alpha"),
        (b'"name": "head"', b'"name": "tail"', "no state named tail.lora_B"),
        (b"PK\x05\x06", b"PK\x00\x00", "tokenizer is damaged"),
    ],
)
def test_damaged_constants(patched_pte: Callable[[bytes, bytes], Path], old: bytes, new: bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=message) as caught:
        open_pte(patched_pte(old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"prgec_contract_version": None}, r"has no prgec_contract_version .*not made by prgec compile"),
        ({"prgec_contract_version": 4, "prgec_manifest": 3}, "speaks contract version 4; this prgec speaks 1, 2, 3"),
        ({"prgec_tokenizer": "text"}, "not a tensor of bytes"),
    ],
)
def test_program_that_is_not_ours(build_variant: Callable[..., Path], constants: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message) as caught:
        open_pte(build_variant(**constants))
    assert "\n" not in str(caught.value)


def test_nothing_is_printed(tiny_pte: Path, tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, numpy\n"
        "from prgec.core.contract.calls import Batch, StepInputs\n"
        "from prgec.runtime.engines.executorch.open import open_pte\n"
        "program = open_pte(pathlib.Path(sys.argv[1]))\n"
        "rows = numpy.full((8, 3), 5)\n"
        "program.forward(Batch(rows, rows[:, :2] * 0, rows[:, :2]), StepInputs.none(2))\n"
    )
    command = [sys.executable, "-c", script, str(tiny_pte)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert (result.stdout, result.stderr) == ("", "")


def test_failing_to_open_prints_nothing(tiny_pte: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ProgramError):
        open_pte(_cut(tiny_pte, tmp_path, 9000))
    assert capfd.readouterr() == ("", "")

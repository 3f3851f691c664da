"""The longest call that runs once before the first score or step leaves nothing but its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prgec.core.contract.calls import Batch, Call, StepInputs
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.runs.options import RunOptions
from prgec.runtime.runs.run import run
from tests.device.conftest import write_rows

LENGTHS = (5, 9, 7, 12)


def _take_steps(program: PteProgram, lengths: Sequence[int] = LENGTHS) -> list[bytes]:
    """Losses, state and optimiser of some steps on rows of many lengths, to the bit."""
    m, random, found = program.manifest, np.random.default_rng(0), []
    for step, length in enumerate(lengths):
        tokens = random.integers(3, m.vocab_size, (m.num_rows, length))
        label_pos = np.full((m.num_rows, m.num_labels), length - 2)
        batch = Batch(tokens, label_pos, np.full_like(label_pos, 7))
        if m.has_gradients:
            for call in (Call(0, is_last=False), Call(1, is_last=True)) if m.accumulates else (Call(0, is_last=True),):
                losses, _ = program.train(batch, 1e-2, call)
        else:
            g_q = np.full(m.q, 0.1, dtype=np.float32)
            losses = program.forward(batch, StepInputs(g_q=g_q, lr=1e-2, eps=1e-2, seed=3, step=step + 1))
        found.append(losses.tobytes())
    arrays = [*program.read_state().values(), *program.read_optimizer().values()]
    return found + [each.tobytes() for each in arrays]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shared", "shortcut", "gathering"])
def test_it_changes_no_bit(name: str, program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    for kind in PteProgram.__subclasses__() + [PteProgram]:
        if "_run_longest" in vars(kind):
            monkeypatch.setattr(kind, "_run_longest", _noting(vars(kind)["_run_longest"], lengths))
    with_room, without = open_pte(program(name)), open_pte(program(name))
    without._has_room = True
    assert _take_steps(with_room) == _take_steps(without)
    assert lengths == [with_room.manifest.seq_len] and lengths[0] > max(LENGTHS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shared", "shortcut"])
def test_it_comes_before_the_first_score_of_a_run(
    name: str, program: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of a shorter score would be held beside it."""
    rows = write_rows(tmp_path / "rows.bin", program(name), examples=7, candidates=2, seed=1)
    lengths: list[int] = []
    kind = type(open_pte(program(name)))
    monkeypatch.setattr(kind, "evaluate", _noting(kind.evaluate, lengths))
    monkeypatch.setattr(kind, "train", _noting(kind.train, lengths))
    run(RunOptions(program=program(name), rows=rows, eval_rows=rows, steps=1, out=tmp_path / "out"))
    assert lengths[0] == open_pte(program(name)).manifest.seq_len > max(lengths[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shortcut", "gathering"])
def test_what_an_optimiser_remembers_is_kept(name: str, program: Callable[[str], Path]) -> None:
    """Where a run goes on with rows that are not the longest."""
    first, second = open_pte(program(name)), open_pte(program(name))
    _take_steps(first)
    second.write_state(first.read_state())
    second.write_optimizer(first.read_optimizer())
    assert any(each.any() for each in second.read_optimizer().values())
    assert _take_steps(second, LENGTHS[:1]) == _take_steps(first, LENGTHS[:1])


def _noting(method: Callable[..., Any], lengths: list[int]) -> Callable[..., Any]:
    def noted(program: PteProgram, batch: Batch, *others: Any) -> Any:
        lengths.append(batch.tokens_NT.shape[1])
        return method(program, batch, *others)

    return noted

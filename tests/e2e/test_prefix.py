"""Blocks before the first trained one: shared by replicas, and kept between epochs, without changing what is learnt.

Letters: q queries, B examples a step, N = 2qB rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prgec.cli.main import main
from prgec.core.contract.arrays import FloatArray, IntArray
from prgec.core.contract.calls import StepInputs
from prgec.core.contract.inspection import inspect_program
from prgec.core.data.rows_file import RowSet
from prgec.errors import UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.engines.prefix import PrefixRunner
from prgec.runtime.training.evaluate import Evaluation, evaluate
from tests.e2e.conftest import Compile
from tests.lockstep import Run, follow, oracle_for, random_examples, random_steps, row_of
from tests.models import TinyLlama

EPS, LR, SEED = 1e-2, 5e-3, 11
MODES = ("none", "shared", "method")
Open = Callable[[str], PteProgram]


@pytest.fixture(scope="module")
def deep_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyLlama(num_layers=3, seed=4).write(tmp_path_factory.mktemp("deep") / "checkpoint")


@pytest.fixture(scope="module")
def paths(compile_once: Compile, deep_checkpoint: Path) -> dict[str, Path]:
    """The same training of the last block, compiled in all three ways, one of them with a T that varies."""
    model = str(deep_checkpoint)
    backends = dict(zip(MODES, ("portable", "portable", "xnnpack"), strict=True))
    return {
        mode: compile_once(model=model, layers=("last:1",), prefix=mode, backend=backend, static=mode != "method")
        for mode, backend in backends.items()
    }


@pytest.fixture
def open_mode(paths: dict[str, Path]) -> Open:
    """Open one of them in its initial state."""
    return lambda mode: open_pte(paths[mode])


class Counted:
    """The prefix of a program, with the number of its calls."""

    def __init__(self, program: PteProgram) -> None:
        self._program = program
        self.num_calls = 0

    def __call__(self, tokens_BT: IntArray) -> FloatArray:
        self.num_calls += 1
        return self._program.compute_prefix(tokens_BT)


def _counted(program: PteProgram, folder: Path) -> Counted:
    """Keep what the program's prefix returns in `folder`, and count what it computes."""
    counted = Counted(program)
    program.prefix = PrefixRunner(counted, program.manifest, "executorch")
    program.prefix.keep_in(folder)
    return counted


def _train(program: PteProgram, steps: int = 8) -> FloatArray:
    """Losses of every row of every step: f32[steps, N]; the state is flushed in the end."""
    run = Run(program, eps=EPS, seed=SEED)
    losses = [run.step(examples, lr) for examples, lr in random_steps(steps, program.manifest, lr=LR, pool=6)]
    run.trainer.flush()
    return np.stack(losses)


def _evaluate(program: PteProgram) -> Evaluation:
    """Score 7 examples with two candidates each, of all lengths."""
    rows = tuple(row_of(example) for example in random_examples(14, program.manifest, seed=3))
    result = evaluate(program, RowSet(rows, 2, (0, 1, 1, 0, 1, 0, 0)))
    assert result is not None
    return result


def test_manifests(open_mode: Open) -> None:
    manifests = {mode: open_mode(mode).manifest for mode in MODES}
    assert [m.prefix for m in manifests.values()] == list(MODES)
    assert [m.hidden_size for m in manifests.values()] == [0, 0, 32]
    assert [m.num_distinct_rows for m in manifests.values()] == [8, 2, 2]
    assert len({m.sites for m in manifests.values()}) == 1
    assert all(site.name.startswith("model.layers.2.") for site in manifests["none"].sites)


@pytest.mark.parametrize("mode", ["shared", "method"])
def test_same_training_as_without(open_mode: Open, mode: str) -> None:
    none, other = open_mode("none"), open_mode(mode)
    np.testing.assert_allclose(_train(other), _train(none), rtol=1e-5)
    state = none.read_state()
    assert max(np.abs(b).max() for b in state.values()) > 0.02
    for name, b in other.read_state().items():
        np.testing.assert_allclose(b, state[name], rtol=1e-3, atol=1e-5)


def test_follows_the_oracle(open_mode: Open, deep_checkpoint: Path) -> None:
    program = open_mode("method")
    oracle = oracle_for(program, deep_checkpoint, eps=EPS, seed=SEED)
    found = follow(program, oracle, random_steps(6, program.manifest, lr=LR, pool=6))
    assert found.max_rel_loss_diff < 1e-5
    assert found.max_rel_state_diff < 1e-4


def test_later_epochs_compute_no_prefix(open_mode: Open, tmp_path: Path) -> None:
    """Every epoch sees the same f16 values, so a second run repeats the first bit by bit."""
    exact = _train(open_mode("method"))
    first, again = open_mode("method"), open_mode("method")
    first_calls = _counted(first, tmp_path)
    losses = _train(first)
    # A pool of 6 rows and 8 steps of 2: after the first few steps all are there.
    assert 3 <= first_calls.num_calls <= 6
    again_calls = _counted(again, tmp_path)
    assert np.array_equal(_train(again), losses)
    assert again_calls.num_calls == 0
    assert again.state_sha256() == first.state_sha256()
    assert not np.array_equal(losses, exact)
    np.testing.assert_allclose(losses, exact, rtol=2e-3)


@pytest.mark.parametrize("mode", ["shared", "method"])
def test_evaluation(open_mode: Open, tmp_path: Path, mode: str) -> None:
    none, other = open_mode("none"), open_mode(mode)
    for program in (none, other):
        program.apply(StepInputs(g_q=np.array([3.0, -2.0], dtype=np.float32), lr=0.3, seed=SEED, step=2))
    expected, found = _evaluate(none), _evaluate(other)
    assert found.accuracy == expected.accuracy
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert (expected.num_calls, found.num_calls) == (2, 7)
    if mode == "method":
        calls = _counted(other, tmp_path)
        assert [_evaluate(other).loss for _ in range(2)] == pytest.approx([expected.loss] * 2, rel=2e-3)
        assert calls.num_calls == 7


def test_one_delegate_each(paths: dict[str, Path]) -> None:
    methods = inspect_program(paths["method"]).pte.methods
    assert {name: len(each.delegates) for name, each in methods.items()} == {"forward": 1, "apply": 0, "prefix": 1}
    # The rest of the forward no longer looks tokens up.
    kernels = {name: "".join(each.kernel_calls) for name, each in methods.items()}
    assert "embedding" in kernels["prefix"] and "embedding" not in kernels["forward"]


@pytest.mark.slow
@pytest.mark.parametrize("state", ["seeded", "dual"])
def test_shared_on_xnnpack(compile_once: Compile, deep_checkpoint: Path, open_mode: Open, state: str) -> None:
    path = compile_once(model=str(deep_checkpoint), layers=("last:1",), prefix="shared", backend="xnnpack", state=state)
    assert len(inspect_program(path).pte.methods["forward"].delegates) == 1
    np.testing.assert_allclose(_train(open_pte(path)), _train(open_mode("none")), rtol=1e-5)


@pytest.mark.slow
def test_quantised(compile_once: Compile, tmp_path: Path) -> None:
    """Activations are quantised token by token, so fewer rows change nothing."""
    checkpoint = TinyLlama(num_layers=2, hidden_size=64).write(tmp_path / "checkpoint")
    losses = {}
    for mode in ("none", "method"):
        path = compile_once(
            model=str(checkpoint),
            layers=("last:1",),
            prefix=mode,
            backend="xnnpack",
            quantize="8da4w",
            group_size=32,
            quantize_embedding=8,
        )
        losses[mode] = _train(open_pte(path))
        assert all(len(each.delegates) == (name != "apply") for name, each in inspect_program(path).pte.methods.items())
    np.testing.assert_allclose(losses["method"], losses["none"], rtol=1e-5)
    first, again = open_pte(path), open_pte(path)
    _counted(first, tmp_path)
    kept = _train(first)
    calls = _counted(again, tmp_path)
    assert np.array_equal(_train(again), kept) and calls.num_calls == 0
    np.testing.assert_allclose(kept, losses["none"], rtol=2e-2)


def _write_rows(path: Path) -> Path:
    words = ("great", "was", "it", "in", "a", "the")
    rows = [{"prompt": f"the film is {word}", "completion": " it" if n % 2 else " of"} for n, word in enumerate(words)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_run_command(paths: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, cache = _write_rows(tmp_path / "rows.jsonl"), tmp_path / "cache"
    states = []
    for out in ("first", "second"):
        code = main(
            [
                "run",
                str(paths["method"]),
                "--data",
                str(data),
                "--eval-data",
                str(data),
                "--steps",
                "6",
                "--prefix-cache",
                str(cache),
                "--out",
                str(tmp_path / out),
                "--json",
            ]
        )
        assert code == 0
        states.append(json.loads(capsys.readouterr().out)["state_sha256"])
    assert states[0] == states[1]
    assert len(list(cache.rglob("*.f16"))) == 6
    assert json.loads((tmp_path / "first" / "run.json").read_text())["options"]["prefix_cache"] == str(cache)


def test_run_command_without_a_prefix_method(
    paths: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = _write_rows(tmp_path / "rows.jsonl"), tmp_path / "out"
    code = main(["run", str(paths["shared"]), "--data", str(data), "--prefix-cache", str(tmp_path), "--out", str(out)])
    assert code == 2
    assert "\nerror: the program has no prefix method whose results could be kept (" in capsys.readouterr().err
    assert not out.exists()


def test_no_block_to_split_off(compile_once: Compile, deep_checkpoint: Path) -> None:
    with pytest.raises(UsageError, match=r"^there is no block before the first trained layer\. Hint: choose --layers"):
        compile_once(model=str(deep_checkpoint), layers=("0",), prefix="method", backend="portable", static=True)

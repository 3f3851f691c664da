"""A plan: rows, the choice, the comparisons, and what cannot be planned; no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prgec.cli.main import main
from prgec.compiler.plan.choose import commands_of
from prgec.compiler.plan.memory import memory_of
from prgec.compiler.plan.options import PlanOptions
from prgec.compiler.plan.plan import Plan, make_plan
from prgec.compiler.plan.shape import ModelShape, shape_of_config
from prgec.compiler.plan.source import compile_name, known_models, read_shape
from prgec.compiler.plan.speed import reported_speed
from prgec.compiler.plan.workload import Workload
from prgec.errors import UsageError

SHAPE = read_shape("TinyLlama-1.1B")
# Measurements of the reports for the program at TinyLlama shapes, q = 4, B = 1, T = 64: MB of anonymous memory.
_REPORTED = [("8da4w", "bench", 949.8), ("none", "bench", 4503.9), ("8da4w", "cpp", 796.3), ("8da4w", "python", 902.4)]
_STEP = Workload(q=4, batch_size=1, seq_len=64)


def _plan(shape: ModelShape = SHAPE, **options: object) -> Plan:
    return make_plan(shape, PlanOptions(**{"memory": 4 * 10**9, **options}), reported_speed("xnnpack"), "m")  # type: ignore[arg-type]


@pytest.mark.parametrize(("quantize", "driver", "measured"), _REPORTED)
def test_memory_at_the_shapes_of_the_reports(quantize: str, driver: str, measured: float) -> None:
    planned = memory_of(SHAPE, replace(_STEP, quantize=quantize), driver=driver).total / 1e6
    assert planned == pytest.approx(measured, rel=0.02)


def test_the_cache_is_counted() -> None:
    # Keys and values of 22 layers with 4 key heads of 64, in f32.
    cache = 8 * 22 * 4 * 64 * 1000
    without, with_cache = (memory_of(SHAPE, replace(_STEP, context=context)) for context in (0, 1000))
    assert (without.cache, with_cache.total - without.total) == (0, cache)
    coded = memory_of(SHAPE, replace(_STEP, context=1000, quantize_cache=8))
    # A head's row of 64 numbers of 4 bytes, or of one each and a scale.
    assert coded.cache * 256 == with_cache.cache * 68
    plan = _plan(context=1000)
    assert {row.memory.cache for row in plan.rows} == {0, cache}
    assert plan.choice.commands[0].endswith(" --generate --context 1000 -o model.pte")
    for context, why in ((-1, "expected 0 or more"), (4000, "TinyLlama-1.1B supports 2048 positions")):
        with pytest.raises(UsageError, match=f"^--context is {context}; {why}$"):
            _plan(context=context)


def test_the_caches_of_rollouts_are_counted() -> None:
    cache = 8 * 22 * 4 * 64 * 1000
    plan = _plan(context=1000, rollouts=8)
    assert {row.memory.cache for row in plan.rows} == {0, 9 * cache}
    assert " --generate --context 1000 --rollouts 8 " in plan.choice.commands[0]
    assert ("--label-weights" in plan.choice.commands[0]) is ("--method prge" not in plan.choice.commands[0])
    for changes in ({"rollouts": 8}, {"rollouts": 1, "context": 100}, {"rollouts": 257, "context": 100}):
        with pytest.raises(UsageError, match=f"^--rollouts is {changes['rollouts']}; expected 2 to 256"):
            _plan(**changes)


@pytest.mark.parametrize(("quantize", "measured_s"), [("8da4w", 0.982), ("none", 2.5)])
def test_time_at_the_shapes_of_the_reports(quantize: str, measured_s: float) -> None:
    assert reported_speed("xnnpack").step_s(SHAPE, replace(_STEP, quantize=quantize)) == pytest.approx(
        measured_s, rel=0.25
    )


def test_the_choice_fits_and_nothing_before_it_does() -> None:
    plan = _plan()
    index = plan.rows.index(plan.choice.row)
    assert plan.choice.row.fits and not any(row.fits for row in plan.rows[:index])
    assert plan.choice.row.memory.total <= 4 * 10**9


def test_less_time_makes_another_choice() -> None:
    slow, quick = _plan(), _plan(seconds=600.0)
    assert slow.choice.row.run_s is not None and slow.choice.row.run_s > 600
    assert quick.choice.row.run_s is not None and quick.choice.row.run_s <= 600


def test_every_method_scheme_and_prefix_has_rows() -> None:
    ways = {(row.work.method, row.work.quantize, row.work.prefix) for row in _plan().rows}
    assert {method for method, _, _ in ways} == {"prge", "exact", "shortcut", "side"}
    assert {scheme for _, scheme, _ in ways} == {"none", "8da8w", "8da4w"}
    assert {prefix for _, _, prefix in ways} == {"none", "shared", "method"}


def test_gradients_keep_what_losses_do_not() -> None:
    same = replace(_STEP, quantize="8da4w", batch_size=4, q=1, seq_len=256)
    exact, shortcut = (memory_of(SHAPE, replace(same, method=name)) for name in ("exact", "shortcut"))
    prge = memory_of(SHAPE, replace(same, batch_size=2))
    assert exact.activations > 5 * prge.activations > shortcut.activations > 0
    assert exact.weights > 1.9 * prge.weights
    assert prge.weights < shortcut.weights < 1.2 * prge.weights


def test_a_model_that_stays_as_it_is_needs_a_forward_and_no_state() -> None:
    same = replace(_STEP, quantize="8da4w", batch_size=8, q=1, num_labels=1)
    side, prge = memory_of(SHAPE, replace(same, method="side")), memory_of(SHAPE, replace(same, batch_size=4))
    assert side.state == 0 < prge.state
    # Label positions are chosen after each block, so that no more of them stay alive the more blocks there are.
    shallow = memory_of(replace(SHAPE, layers=4), replace(same, method="side"))
    assert side.activations == shallow.activations < prge.activations
    assert 0.9 * prge.weights < side.weights < prge.weights
    plan = _plan(num_examples=100)
    row = next(row for row in plan.rows if row.work.method == "side" and row.work.batch_size == 16)
    assert row.run_s == pytest.approx(7 * (row.step_s or 0)), "a hundred rows, once"
    assert row.kept_bytes == 100 * 2 * 22 * 2048
    assert commands_of(row, plan.options, "m") == (
        "prgec compile m --method side --batch-size 16 --seq-len 128 -o backbone.pte",
        "prgec side emit backbone.pte --data train.jsonl -o acts",
        "prgec side fit acts -o side.safetensors",
        "prgec side build side.safetensors -o side.pte",
    )


def test_packed_weights_in_a_file_are_no_demand() -> None:
    assert memory_of(SHAPE, _STEP, packed_in_file=True).total < 0.1 * memory_of(SHAPE, _STEP).total


def test_the_formula_of_the_paper_and_the_corrected_one() -> None:
    # At 32768 tokens the order of the paper's picture holds, whatever back-propagation does not keep.
    llama = read_shape("Llama-2-7B")
    plan = make_plan(
        replace(llama, max_positions=0), PlanOptions(memory=10**12, seq_len=32768), reported_speed("xnnpack"), "m"
    )
    peak = {row.name: row.peak_bytes for row in plan.others}
    full, checkpointed, flash, mezo = (peak[name] for name in list(peak)[:4])
    assert full > checkpointed > flash > mezo
    # It counts an MLP and keys that TinyLlama has not.
    paper = {row.name: row.peak_bytes for row in _plan().others}
    assert paper["MeZO by the paper's formula, L'/L = 0.15"] > 1.1 * 2 * SHAPE.num_weights


@pytest.mark.parametrize("budget", [2, 4, 8, 16])
@pytest.mark.parametrize("name", ["TinyLlama-1.1B", "Llama-2-7B", "Qwen2.5-1.5B", "Gemma-3-270M", "OPT-1.3B"])
def test_a_config_alone_is_enough(name: str, budget: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(known_models()[name]), encoding="utf-8")
    code = main(["plan", str(path), "--memory", f"{budget}G", "--json"])
    out, err = capsys.readouterr()
    if code == 0:
        document = json.loads(out)
        assert document["choice"]["peak_bytes"] <= budget * 10**9
        assert document["choice"] in [{**document["choice"], **row} for row in document["rows"]]
    else:
        assert (code, name, budget) == (2, "Llama-2-7B", 2) and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["Llama-2-7B", "--memory", "2G"], 2, "no way to train Llama-2-7B fits 2.00 GB: the least, side 8da4w B=1,"),
        (["TinyLlama-1.1B", "--memory", "4G", "--time", "1s"], 2, "nothing that fits 4.00 GB takes 1000 steps in 1 s"),
        (["TinyLlama-1.1B", "--memory", "4Q"], 2, "--memory is '4Q': there is no unit 'Q'"),
        (["TinyLlama-1.1B", "--memory", "4G", "--time", "soon"], 2, "--time is 'soon'; expected a positive number"),
        (["TinyLlama-1.1B", "--memory", "4G", "--steps", "0"], 2, "--steps is 0"),
        (["TinyLlama-1.1B", "--memory", "4G", "--watts", "nan"], 2, "--watts is nan"),
        (["TinyLlama-1.1B", "--memory", "4G", "--seq-len", "4096"], 2, "TinyLlama-1.1B supports 2048 positions"),
        (["TinyLlama-1.1B", "--memory", "4G", "--label-tokens", "200"], 2, "fewer labels than that"),
        (["TinyLlama-1.1B", "--memory", "4G", "--backend", "cuda"], 2, "--backend cuda is not calibrated"),
        (["tinylama", "--memory", "4G"], 3, "there is no folder, file, name or hub id 'tinylama'"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and message in err and err.count("\n") == 1


def test_a_folder_whose_weights_belong_to_another_model(tmp_path: Path) -> None:
    from prgec.demo import checkpoint_dir

    config = json.loads((checkpoint_dir() / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes((checkpoint_dir() / "model.safetensors").read_bytes())
    assert main(["plan", str(tmp_path), "--memory", "4G"]) == 3
    assert main(["plan", str(checkpoint_dir()), "--memory", "4G"]) == 0
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    assert main(["plan", str(tmp_path), "--memory", "4G"]) == 3


def test_the_bundled_model_counts_its_own_tensors() -> None:
    shape = read_shape("demo")
    assert shape.weights == pytest.approx(shape_of_config(json.loads(_demo_config()), "demo").num_weights, rel=0.01)
    assert shape.file_bytes >= 2 * shape.weights


def _demo_config() -> str:
    from prgec.demo import checkpoint_dir

    return (checkpoint_dir() / "config.json").read_text(encoding="utf-8")


def test_the_command_says_what_the_row_is() -> None:
    line = _plan().choice.commands[0]
    work = _plan().choice.row.work
    assert line.startswith(f"prgec compile m --method {work.method} --batch-size {work.batch_size} ")
    assert f"--quantize {work.quantize}" in line


def test_the_command_names_what_can_be_compiled(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert compile_name(str(tmp_path / "config.json")) == str(tmp_path)
    assert [compile_name(name) for name in ("demo", "tinyllama", "someone/some-model", str(tmp_path))] == [
        "demo",
        "tinyllama",
        "someone/some-model",
        str(tmp_path),
    ]
    assert [compile_name(name) for name in ("Gemma-3-270M", "Llama-2-7B")] == ["gemma-3-270m", "path/to/Llama-2-7B"]


def test_data_say_t_and_k(capsys: pytest.CaptureFixture[str]) -> None:
    from prgec.demo import data_file

    assert main(["plan", "demo", "--memory", "1G", "--data", str(data_file("train")), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["seq_len"] < 128


def test_a_plan_needs_no_torch() -> None:
    script = (
        "import sys; from prgec.cli.main import main; code = main(['plan', 'OPT-1.3B', '--memory', '4G']);"
        "print(code, [m for m in ('torch', 'executorch', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_a_narrow_fit_is_reported() -> None:
    peak = _plan().choice.row.memory.total
    assert "less than the 5% a plan may be off" in _plan(memory=peak + 1).choice.reasons[1]
    assert "less than" not in _plan(memory=2 * peak).choice.reasons[1]


def test_energy_is_power_times_time() -> None:
    plan = _plan(watts=10.0)
    assert plan.choice.row.run_s is not None
    assert plan.energy_j(plan.choice.row) == pytest.approx(10 * plan.choice.row.run_s)
    assert _plan().energy_j(plan.choice.row) is None


def test_layers_that_cannot_be_planned() -> None:
    with pytest.raises(UsageError, match="--layers last:23 cannot be planned for a model of 22 layers"):
        memory_of(SHAPE, replace(_STEP, layers="last:23"))

"""A calibration says of a machine what was measured there, and no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prgec.cli.main import main
from prgec.compiler.plan.calibration import calibrated_speed, calibration_path, keep_calibration
from prgec.compiler.plan.costs import Costs, counts_of
from prgec.compiler.plan.shape import shape_of_config
from prgec.compiler.plan.source import known_models, read_shape
from prgec.compiler.plan.workload import Workload
from prgec.errors import UsageError
from prgec.lab.bench.calibrate import WAYS, slice_config
from prgec.lab.bench.fit import fit_costs

_TRUE = Costs(2e-12, 5e-12, 1e-10, 4e-11, 3e-4)
SHAPE = read_shape("TinyLlama-1.1B")


def test_costs_that_explain_all_steps_are_found() -> None:
    ways = [Workload(m, "8da4w", "last:2", q, b, t) for m, q, b in WAYS for t in (32, 64, 128)]
    counts = [counts_of(SHAPE, way) for way in ways]
    found = fit_costs([(each, _TRUE.of(each)) for each in counts])
    other = counts_of(SHAPE, Workload("prge", "8da4w", "last:6", 4, 2, 96, prefix="shared"))
    assert found.of(other) == pytest.approx(_TRUE.of(other), rel=0.01)
    # Noise makes no cost negative, which would make some step take no time.
    noisy = fit_costs([(each, _TRUE.of(each) * (1.1 if index % 2 else 0.9)) for index, each in enumerate(counts)])
    assert noisy.of(other) == pytest.approx(_TRUE.of(other), rel=0.25)
    with pytest.raises(ValueError, match="no costs explain"):
        fit_costs([])


@pytest.mark.parametrize("name", known_models())
def test_slices_are_as_wide_as_the_model(name: str) -> None:
    whole, one = read_shape(name), shape_of_config(slice_config(known_models()[name], 1), name)
    assert (one.layers, one.linears, one.activation) == (1, whole.linears, whole.activation)
    assert one.vocab == min(whole.vocab, 4096)


def test_lists_of_blocks_are_cut_and_language_models_found() -> None:
    config = {**known_models()["Gemma-3-270M"], "layer_types": ["sliding_attention", *["full_attention"] * 17]}
    cut = slice_config({"model_type": "gemma3", "text_config": config}, 2)
    assert cut["layer_types"] == ["sliding_attention", "full_attention"]
    assert cut["model_type"] == "gemma3_text" and cut["num_hidden_layers"] == 2


def test_plans_use_what_was_kept(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrated_speed() is None
    ten_times = Costs(*(10 * each for each in (2e-12, 5e-12, 1e-10, 4e-11, 3e-4)))
    keep_calibration({("8da4w", "exact"): ten_times}, "some-model", "2026-01-02")
    keep_calibration({("8da4w", "prge"): _TRUE}, "other-model", "2026-01-03")
    assert calibration_path() == own_cache / "speeds.json"
    assert main(["plan", "TinyLlama-1.1B", "--memory", "16G", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["speed"].startswith("this machine, calibrated 2026-01-03 with blocks of other-model (")
    times = {(row["quantize"], row["method"]): row["step_s"] for row in document["rows"]}
    assert {scheme for (scheme, _), step_s in times.items() if step_s is None} == {"none"}
    # Gradients are of one kind, and int8 products of another.
    work = Workload("shortcut", "8da8w", "all", 1, 16, 128)
    row = next(r for r in document["rows"] if (r["method"], r["quantize"], r["layers"]) == ("shortcut", "8da8w", "all"))
    assert row["step_s"] == pytest.approx(ten_times.of(counts_of(SHAPE, work)))


def test_another_machine_has_not_been_measured(own_cache: Path) -> None:
    keep_calibration({("none", "prge"): _TRUE}, "m", "2026-01-02")
    path = calibration_path()
    path.write_text(json.dumps({"another machine": next(iter(json.loads(path.read_text()).values()))}))
    assert calibrated_speed() is None


@pytest.mark.parametrize("text", ["", "[]", '{"M": 3}', '{"M": {"none": {"prge": {"seconds": {"call": 1}}}}}'])
def test_a_damaged_file_is_one_line(text: str, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from prgec.core.machine.describe import machine_name

    own_cache.mkdir()
    (own_cache / "speeds.json").write_text(text.replace('"M"', json.dumps(machine_name())))
    assert main(["plan", "TinyLlama-1.1B", "--memory", "4G"]) == 2
    err = capsys.readouterr().err
    assert "cannot use the calibration" in err and "delete it" in err and err.count("\n") == 1


def test_one_source_of_speeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "TinyLlama-1.1B", "--memory", "4G", "--calibrate", "--bench", str(tmp_path / "b.json")]
    assert main(arguments) == 2
    assert "give one of them" in capsys.readouterr().err


def test_costs_are_never_negative() -> None:
    for value in (-1.0, float("nan"), float("inf"), "1"):
        with pytest.raises(ValueError, match="are not costs"):
            Costs(product=value)  # type: ignore[arg-type]


def test_a_place_to_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PRGEC_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert calibrated_speed() is None
    with pytest.raises(UsageError, match="no cache folder"):
        keep_calibration({}, "m", "2026-01-02")

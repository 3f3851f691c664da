"""A compilation that memory will not hold ends before the model is loaded."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from prgec.backends import load_backend
from prgec.compiler import preflight
from prgec.compiler.compile import compile_model
from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.options import CompileOptions
from prgec.compiler.plan.memory import memory_of
from prgec.compiler.plan.source import read_shape
from prgec.compiler.preflight import check_device_memory, check_host_memory, workload_of
from prgec.errors import BackendError, UsageError

OPTIONS = CompileOptions(model="demo", q=4, batch_size=4, seq_len=64)
DEMO = find_checkpoint("demo")


def test_the_plan_of_a_compilation_is_that_of_its_workload() -> None:
    options = replace(OPTIONS, method="exact", optimizer="adamw", quantize="8da4w", layers=("last:2",), rank=8)
    work = workload_of(options, read_shape("demo"))
    assert work is not None
    assert (work.method, work.layers, work.prefix, work.rank, work.optimizer) == ("exact", "last:2", "none", 8, "adamw")
    assert check_device_memory(DEMO, options) == memory_of(read_shape("demo"), work)


def test_replicas_share_their_prefix_as_the_compiler_has_it() -> None:
    work = workload_of(replace(OPTIONS, layers=("last:1",)), read_shape("demo"))
    assert work is not None and work.prefix == "shared"


def test_a_program_too_large_for_the_device(tmp_path: Path) -> None:
    options = replace(OPTIONS, memory="8M", output=tmp_path / "m.pte")
    with pytest.raises(UsageError, match=r"training takes \d+ MB, \d+ MB of it weights.*--memory is 8 MB.*prgec plan"):
        compile_model(options)
    assert list(tmp_path.iterdir()) == []


def test_it_goes_on_where_somebody_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "prgec"):
        planned = check_device_memory(DEMO, replace(OPTIONS, memory="8M", ignore_memory=True))
    assert planned is not None and planned.total > 8e6
    assert "--memory is 8 MB" in caplog.text


def test_a_budget_nobody_can_check() -> None:
    with pytest.raises(UsageError, match="--memory cannot be checked: a plan knows --targets all-linear and last:K"):
        check_device_memory(DEMO, replace(OPTIONS, memory="1G", targets=("q_proj",)))
    assert check_device_memory(DEMO, replace(OPTIONS, layers=("0", "2-3"))) is None


def test_a_machine_too_small_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available_memory_bytes", lambda: 10**6)
    monkeypatch.setattr(preflight, "resident_memory_bytes", lambda: 10**6)
    for name in ("xnnpack", "qnn"):
        with pytest.raises(BackendError, match=f"compiling demo for {name} takes about 1.0. GB of memory, and 2 MB"):
            check_host_memory(load_backend(name), DEMO, OPTIONS, "none")


def test_fewer_tokens_are_named_where_they_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available_memory_bytes", lambda: 0)
    monkeypatch.setattr(preflight, "resident_memory_bytes", lambda: 0)
    for name, batch_size, helps in (("qnn", 4, True), ("qnn", 1, False), ("xnnpack", 4, False)):
        with pytest.raises(BackendError) as error:
            check_host_memory(load_backend(name), DEMO, replace(OPTIONS, method="prge", batch_size=batch_size), "none")
        assert ("or with a smaller --batch-size or --seq-len" in str(error.value)) == helps


@pytest.mark.parametrize("method", ["prge", "exact", "shortcut"])
def test_weights_are_counted_before_data_say_how_long_rows_are(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[int] = []
    backend = load_backend("xnnpack")
    monkeypatch.setattr(type(backend), "memory_bytes", lambda _, weights, *rest: needed.append(weights) or 0)
    options = replace(OPTIONS, method=method, data=(Path("rows.jsonl"),))
    check_host_memory(backend, DEMO, options, "none")
    check_host_memory(backend, DEMO, replace(options, seq_len=0, num_labels=0), "none")
    assert needed[0] == needed[1] > 0


def test_gradients_take_more_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[int] = []
    backend = load_backend("xnnpack")
    monkeypatch.setattr(type(backend), "memory_bytes", lambda _, weights, *rest: needed.append(weights) or 0)
    for method in ("prge", "shortcut", "exact"):
        check_host_memory(backend, DEMO, replace(OPTIONS, method=method), "none")
    assert needed[0] < needed[1] < needed[2]


def test_rounding_by_data_is_refused_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available_memory_bytes", lambda: 0)
    monkeypatch.setattr(preflight, "resident_memory_bytes", lambda: 0)
    monkeypatch.setattr(preflight, "rounding_bytes", lambda shape, weights: 15 * 10**9 + weights)
    backend, options = load_backend("xnnpack"), replace(OPTIONS, quantize="8da4w", data=(Path("rows.jsonl"),))
    with pytest.raises(BackendError, match=r"takes about 15\.0. GB of memory") as error:
        check_host_memory(backend, DEMO, options, "8da4w")
    assert "or with --rounding nearest" in str(error.value)
    for other in (replace(options, rounding="nearest"), replace(options, data=())):
        with pytest.raises(BackendError, match=r"takes about 1\.\d+ GB of memory") as error:
            check_host_memory(backend, DEMO, other, "8da4w")
        assert "--rounding" not in str(error.value)

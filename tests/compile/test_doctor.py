"""`prgec doctor` says what works here and why the rest does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prgec.backends import BACKENDS
from prgec.backends.qnn.loading import load_libraries
from prgec.cli.main import main
from prgec.compiler import doctor
from prgec.compiler.doctor import BackendHealth, Health


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fit"] is True and found["kernels"].endswith("libprgec_ops.so")
    backends = {each["name"]: each for each in found["backends"]}
    assert list(backends) == list(BACKENDS)
    assert backends["xnnpack"]["is_available"] and backends["portable"]["is_available"]
    assert backends["qnn"]["is_available"] and backends["qnn"]["memory_bytes"] > 5e9
    libraries = backends["qnn"]["found"]
    assert libraries["build"].startswith("v2.") and Path(libraries["licence"]).is_file()
    assert {"prgec", "torch", "executorch", "onnxruntime-qnn"} <= set(found["machine"]["versions"])


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path))
    load_libraries.cache_clear()
    try:
        assert main(["doctor"]) == 0
    finally:
        load_libraries.cache_clear()
    out = capsys.readouterr().out
    assert "qnn       no: QNN_SDK_ROOT is not a Qualcomm AI Runtime SDK: no libQnnHtp.so" in out
    assert "licence" not in out


def test_what_was_found_is_told_under_its_own_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    sections: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if not line.startswith(" "):
            name, section = line.split()[0], []
            sections[name] = section
        section.append(line.split()[0])
    assert {"build", "origin", "folder", "licence"} <= set(sections["qnn"])
    assert sections["portable"] == ["portable"]


def test_a_broken_default_backend_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = BackendHealth(name="xnnpack", is_available=False, reason="it is not here", memory_bytes=0)
    machine = {"system": "s", "cpu": "c", "cores": 1, "memory_bytes": 1, "versions": {}}
    monkeypatch.setattr(
        doctor,
        "examine",
        lambda: Health(
            machine=machine,
            memory_available_bytes=1,
            kernels="lib",
            has_kernels=True,
            backends=(broken,),
            compiler_missing="",
        ),
    )
    assert main(["doctor"]) == 7
    assert "xnnpack   no: it is not here" in capsys.readouterr().out

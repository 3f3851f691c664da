"""OpenVINO's libraries: found, set to compute in f32, and refused where they do not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prgec.backends.openvino import libraries, precision
from prgec.errors import BackendError

REPOSITORY = Path(__file__).parents[2]
# ExecuTorch's bindings set it wherever they are imported.
NAMED = "OPENVINO_LIB_PATH"
needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs the extra openvino")
# Once in each process OpenVINO is loaded: what is chosen there has a process of its own.
SCRIPT = """
import sys
from prgec.backends import load_backend
from prgec.errors import BackendError
try:
    load_backend("openvino").load_runtime()
    print("f32")
except BackendError as error:
    print(error)
"""


def _load(script: str = SCRIPT, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**{key: value for key, value in os.environ.items() if key != NAMED}, **environment},
        check=True,
    )
    # Nothing of what the runtime logs reaches the user.
    assert done.stderr == "" or "Failed to load" in done.stderr
    return done.stdout.strip()


def test_one_that_is_not_installed_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"OpenVINO is not on this machine. Hint: pip install 'openvino==\d"):
        libraries.library_folder()


def test_one_without_libraries_is_named_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "openvino", raising=False)
    with pytest.raises(BackendError, match="OpenVINO has no libopenvino_c.so for this system"):
        libraries.library_folder()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (64.0, "computes in bfloat16 here, not in f32"),
        (float("nan"), "computes wrong results"),
        (0.0, "computes wrong results"),
    ],
)
def test_a_product_that_is_not_f32_is_refused(value: float, message: str) -> None:
    with pytest.raises(BackendError, match=message) as refusal:
        precision.check_product(value)
    assert "\n" not in str(refusal.value) and "Hint: " in str(refusal.value)


def test_a_product_in_f32_passes() -> None:
    precision.check_product(64.03125)


@needs_openvino
def test_loaded_here_it_computes_in_f32_and_leaves_nothing() -> None:
    script = SCRIPT + 'import os; print("OPENVINO_LIB_PATH" in os.environ, "openvino" in sys.modules)'
    assert _load(script).splitlines() == ["f32", "False False"]


@needs_openvino
def test_it_computes_in_f32_where_executorch_named_the_library_first() -> None:
    """Its bindings put the path of the package's library into the environment when they are imported."""
    assert _load("import executorch.runtime\n" + SCRIPT) == "f32"


@needs_openvino
def test_modules_are_imported_without_telemetry() -> None:
    script = """
import sys
from prgec.backends.openvino.libraries import import_module
print(import_module("openvino").__version__[:4], sorted(name for name in sys.modules if name.startswith("openvino_")))
"""
    assert _load(script) == "2026 []"


@needs_openvino
def test_a_library_that_computes_in_bf16_is_refused(tmp_path: Path) -> None:
    """Set by the same file that sets ours to f32."""
    for each in libraries.library_folder().iterdir():
        (tmp_path / each.name).symlink_to(each)
    settings = libraries._PLUGINS.format(folder=tmp_path).replace('value="f32"', 'value="bf16"')
    (tmp_path / "plugins.xml").write_text(settings)
    library = next(tmp_path.glob("libopenvino_c.so*"))
    said = _load(OPENVINO_LIB_PATH=str(library))
    if said == "f32":
        pytest.skip("this processor has no bfloat16, so OpenVINO computes in f32 whatever it is told")
    assert said.startswith("OpenVINO computes in bfloat16 here, not in f32: 64 x 1.00024^2 made 64.0")
    assert said.endswith("which sets its plug-in to f32") and "\n" not in said


@needs_openvino
def test_a_library_that_is_not_there_is_named() -> None:
    said = _load(OPENVINO_LIB_PATH="/nowhere/libopenvino_c.so")
    assert said.startswith("cannot load OpenVINO: /nowhere/libopenvino_c.so")
    assert said.endswith("unset OPENVINO_LIB_PATH to use the package openvino")

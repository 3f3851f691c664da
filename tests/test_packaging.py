"""The layout promises: links resolve, a wheel holds prgec and its kernels only, light imports stay light."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import prgec

ROOT = Path(__file__).resolve().parent.parent
LINKS = {
    "src/prgec": "../prgec",
    "prgec/passes": "../passes",
    "prgec/backends": "../backends",
    "prgec/runtime_ops": "../runtime_ops",
}


@pytest.mark.parametrize("link", LINKS)
def test_links_are_relative_and_resolve(link: str) -> None:
    path = ROOT / link
    assert path.readlink() == Path(LINKS[link])
    assert path.is_dir()


@pytest.mark.parametrize("name", ["passes", "backends", "runtime_ops"])
def test_subpackages_import_only_as_parts_of_prgec(name: str, tmp_path: Path) -> None:
    code = f"import importlib.util as u; assert u.find_spec('prgec.{name}'); assert u.find_spec('{name}') is None"
    run_python(code, tmp_path)


def test_no_source_is_ignored() -> None:
    # The linter skips files that git ignores, and a wheel may lack them.
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout == ""


def test_the_contract_and_the_op_package_import_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys, prgec.core.contract.manifest, prgec.runtime_ops\n"
        "assert not {'torch', 'executorch', 'numpy'} & set(sys.modules)"
    )
    run_python(code, tmp_path)


def test_the_installed_library_is_found(tmp_path: Path) -> None:
    code = "from prgec.runtime_ops.native import kernel_library as k; print(k())"
    assert run_python(code, tmp_path).strip().endswith("libprgec_ops.so")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *build, "-C", f"build-dir={folder / 'build'}"], check=True)
    (path,) = folder.glob("*.whl")
    return path


def test_a_wheel_holds_prgec_and_its_kernels_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {"prgec", f"prgec-{prgec.__version__}.dist-info"}
    assert "-py3-none-" in wheel.name
    assert {f"prgec/runtime_ops/libprgec_{name}.so" for name in ("ops", "qnn")} <= names
    assert {"prgec/runtime_ops/csrc/philox.h", "prgec/py.typed"} <= names
    assert {"prgec/device/csrc/CMakeLists.txt", "prgec/device/csrc/include/prge/trainer.h"} <= names
    assert {"prgec/runtime/report/page.html.jinja", "prgec/runtime/report/report.css"} <= names
    assert {"prgec/serve/ui/ui.css", "prgec/serve/ui/ui.js", "prgec/serve/ui/templates/base.html.jinja"} <= names
    assert any(name.startswith("prgec/demo/checkpoint/") for name in names)
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name or "/build/" in name]
    assert {f"prgec/{path}" for path in committed_modules()} <= names


def test_an_installed_wheel_adds_prgec_and_finds_its_kernels(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    assert {entry.name.split("-")[0] for entry in site.iterdir()} <= {"prgec", "bin"}
    # Without site-packages the editable install of this environment is out of the way.
    code = (
        f"import sys; sys.path.append({str(site)!r}); from prgec.runtime_ops.native import *; print(kernel_library())"
    )
    assert run_python(code, tmp_path, "-S").strip() == str(site / "prgec/runtime_ops/libprgec_ops.so")


def committed_modules() -> set[str]:
    """Paths of the committed modules inside the package `prgec`."""
    command = ["git", "ls-files", "prgec/*.py", "passes/*.py", "backends/*.py", "runtime_ops/*.py"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return {path.removeprefix("prgec/") for path in listed if (ROOT / path).is_file()}


def run_python(code: str, folder: Path, *flags: str) -> str:
    """Run `code` away from the source tree and without the paths pytest added."""
    command = [sys.executable, "-I", *flags, "-c", code]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout

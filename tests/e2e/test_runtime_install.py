"""An installation without extras runs programs: it has what pyproject.toml declares for it, and nothing else."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.e2e.conftest import PROGRAMS, Compile

ROOT = Path(__file__).resolve().parents[2]
_MAIN = "import sys\nfrom prgec.cli.main import main\nsys.exit(main(sys.argv[1:]))"


def _declared(package: str, found: set[str]) -> set[str]:
    """A package and everything that it depends on here, without extras."""
    if package not in found:
        found.add(package)
        for text in importlib.metadata.requires(package) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                _declared(requirement.name, found)
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages as pip makes it of a wheel, with links to what the wheel declares."""
    folder, site = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("site")
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *build, "-C", f"build-dir={folder / 'build'}"], check=True)
    install = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(site), *map(str, folder.glob("*.whl"))]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    for package in _declared("prgec", set()) - {"prgec"}:
        for file in importlib.metadata.distribution(package).files or ():
            top, place = file.parts[0], Path(str(file.locate()))
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to([place, *place.parents][len(file.parts) - 1])
    return site


def _attempt(site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    code = f"import sys\nsys.path.append({str(site)!r})\n{_MAIN}"
    # Without site-packages, of this environment only the interpreter remains.
    command = [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=site)


def _prgec(site: Path, *arguments: object) -> str:
    done = _attempt(site, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_of_the_compiler_is_declared() -> None:
    assert not {"torch", "executorch", "torchao", "transformers"} & _declared("prgec", set())


def test_it_trains_evaluates_talks_and_exports(site: Path, compile_once: Compile, tmp_path: Path) -> None:
    path, run, rows = compile_once(**PROGRAMS["xnnpack-seeded"]), tmp_path / "run", tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a b", "completion": "c"}\n{"prompt": "b a", "completion": "d"}\n')
    assert "Usage" in _prgec(site, "--help")
    _prgec(site, "run", path, "--data", rows, "--steps", 3, "--out", run)
    evaluated = json.loads(_prgec(site, "eval", path, "--data", rows, "--adapter", run, "--json"))
    assert evaluated["state_sha256"] == json.loads((run / "run.json").read_bytes())["state_sha256"]
    _prgec(site, "predict", path, "--data", rows, "--adapter", run, "--candidate", "c", "--candidate", "d")
    _prgec(site, "inspect", path)
    _prgec(site, "report", run)
    _prgec(site, "export", run, "--format", "peft", "-o", tmp_path / "peft")
    assert (tmp_path / "peft" / "adapter_model.safetensors").is_file()
    replayed = _prgec(site, "replay", run, "--program", path, "-o", tmp_path / "again.safetensors")
    assert "equal to the run's own state" in replayed
    assert "compiler  no: torch is not installed" in _prgec(site, "doctor")


@pytest.mark.parametrize("arguments", [("compile", "demo", "-o", "x.pte"), ("demo",), ("bench", "step", "demo")])
def test_what_needs_more_names_it(site: Path, arguments: tuple[str, ...]) -> None:
    done = _attempt(site, *arguments)
    assert done.returncode == 7 and done.stderr.count("\n") == 1, done.stderr
    assert "is not installed" in done.stderr and "Hint: pip install 'torch==" in done.stderr


def test_the_api_says_it_too(site: Path) -> None:
    code = (
        f"import sys\nsys.path.append({str(site)!r})\nimport prgec\n"
        "try:\n    prgec.compile('demo', output='x.pte', use_cache=False)\n"
        "except prgec.PrgecError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert "Hint: pip install 'torch==" in done.stdout

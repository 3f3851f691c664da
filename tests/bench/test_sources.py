"""The sources of a program are computed: a change of any file that a compilation runs makes another program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from prgec.lab.bench import sources
from prgec.lab.bench.sources import named_modules, reached_files, sources_sha256

BUILD = "prgec.lab.bench.build"


def test_everything_a_compilation_imports_is_reached(tmp_path: Path) -> None:
    """Every backend, every pass, and what is imported only when it is needed."""
    script = (
        "import sys, pathlib\n"
        "from prgec.lab.bench.build import build_all, default_pipeline\n"
        "from prgec.backends import BACKENDS, load_backend\n"
        "from prgec.passes import pass_table\n"
        "from prgec.compiler.options import CompileOptions\n"
        "pass_table()\n"
        "options = CompileOptions(model='demo', output=pathlib.Path('m.pte'))\n"
        "default_pipeline(options, load_backend('xnnpack'))\n"
        "print(*[name for name in sys.modules if name.split('.')[0] == 'prgec'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    imported = set(done.stdout.splitlines()[-1].split())
    assert len(imported) > 60
    assert imported - set(reached_files(BUILD)) == set()


def test_what_a_compilation_never_runs_is_not() -> None:
    rooms = {part for name in reached_files(BUILD) if name.count(".") > 1 for part in name.split(".")[1:3]}
    assert {"passes", "backends", "compiler", "frontend", "contract", "runtime_ops"} <= rooms
    assert not rooms & {"api", "cli", "report", "runs", "study"}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("def f():\n    from prgec.a import b", "prgec.a.b"),
        ("import prgec.a", "prgec.a"),
        ("T = {'x': 'prgec.a.b:C'}", "prgec.a.b"),
    ],
)
def test_every_way_to_name_a_module_is_seen(line: str, name: str) -> None:
    assert name in set(named_modules(line))


def test_a_changed_file_changes_the_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "prgec"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "top.py").write_text("def f():\n    from prgec import below\n")
    (package / "below.py").write_text("A = 1\n")
    (package / "apart.py").write_text("A = 1\n")
    monkeypatch.setattr(sources, "_PACKAGE", package)
    hashes = []
    for changed in ("", "apart", "below"):
        if changed:
            (package / f"{changed}.py").write_text("A = 2\n")
        sources_sha256.cache_clear()
        hashes.append(sources_sha256("prgec.top"))
    sources_sha256.cache_clear()
    assert hashes[0] == hashes[1] != hashes[2]

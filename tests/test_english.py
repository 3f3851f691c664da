"""The word list of `.ci/run lint`: each habit is found in every kind of text, and plain English passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def check(path: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run the tool over one file."""
    path.write_text(text, encoding="utf-8")
    command = [sys.executable, ROOT / "tools" / "english.py", path.name]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "text", "line", "words"),
    [
        ("a.py", "# The norm stands behind\n# the sum.\n", 1, "behind"),
        ("a.py", "x = 1\n# A copy stands in\n# front of the view.\n", 2, "in front"),
        ("a.py", '"""Steps."""\n\n\ndef f():\n    """What a step returns."""\n', 5, "What"),
        ("a.py", '"""Steps.\n\nArgs:\n    rate: What it is multiplied by.\n"""\n', 4, "What"),
        ("a.py", '"""Steps.\n\nThe last one.\nOf the others nothing is kept.\n"""\n', 4, "Of"),
        ("a.py", "# Whose weights are frozen is known.\n", 1, "Whose"),
        ("a.py", "# Rows are read. Who reads them waits.\n", 1, "Who"),
        ("a.py", "message = f'{path} is no file'\n", 1, "is no"),
        ("a.py", "message = 'nobody told it the rate'\n", 1, "told"),
        ("a.py", "# Asked after each step.\n", 1, "Asked"),
        ("a.cpp", "// The header said\n// so.\n", 1, "said"),
        ("a.h", 'auto text = "the host hears of it";\n', 1, "hears"),
        ("a.md", "# Runs\n\nA run is\ntaken up later.\n", 4, "taken up"),
        ("a.toml", "rank = 8  # whatever it is told\n", 1, "told"),
    ],
)
def test_a_habit_is_found(name: str, text: str, line: int, words: str, tmp_path: Path) -> None:
    run = check(tmp_path / name, text)
    assert (run.returncode, run.stderr) == (1, "")
    assert run.stdout.startswith(f"{name}:{line}: '{words}' in a ") and run.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""Steps of a run."""\n\nBEHIND = told = said = "behind"\n# There is no rate here. What then?\n'),
        ("a.cpp", 'auto name = "behind"; // the order of `f(a, b)`\n'),
        ("a.md", "# What it does\n\n    told behind\n\n```\nsaid\n```\n\nOf course `asked` is no longer than that.\n"),
    ],
)
def test_plain_english_names_and_code_pass(name: str, text: str, tmp_path: Path) -> None:
    run = check(tmp_path / name, text)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_proselint_reads_the_prose_of_pages(tmp_path: Path) -> None:
    run = check(tmp_path / "a.md", "# Runs\n\n    a free gift\n\nIt is not a `free gift`.\nIt is a free gift.\n")
    assert run.returncode == 1 and all(line.startswith("a.md:6: ") for line in run.stdout.splitlines()), run.stdout


def test_the_clean_folders_are_clean() -> None:
    run = subprocess.run([sys.executable, "tools/english.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "")

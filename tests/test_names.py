"""A name stands for one thing: class names are unique in everything that is installed."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("prgec", "passes", "backends", "runtime_ops")
# The rows of a benchmark's table, and the rows of data that a program reads.
TWICE = {"Row"}


def classes_in(source: str) -> list[str]:
    """Names of all classes of a file, nested ones included."""
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def repeated(sources: dict[str, str]) -> dict[str, list[str]]:
    """Class name -> the files that have it, where there are several."""
    found = defaultdict(list)
    for path, source in sources.items():
        for name in classes_in(source):
            found[name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1 and name not in TWICE}


def read_sources() -> dict[str, str]:
    # The links in prgec/ lead to the other folders.
    paths = {path.resolve() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(paths)}


def test_class_names_are_unique() -> None:
    assert repeated(read_sources()) == {}


def test_a_second_class_of_a_name_is_found() -> None:
    sources = {"a.py": "class Tape:\n    pass\n", "b.py": "def f():\n    class Tape:\n        pass\n"}
    assert repeated(sources) == {"Tape": ["a.py", "b.py"]}

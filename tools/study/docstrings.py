"""A task in real English that every machine has: which family of modules a docstring of the standard library is from.

The docstrings are read from the running Python and never written into this repository, so rows differ a little
between Python versions; the seed fixes everything else.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
from pathlib import Path

from study.generated import Row

# Modules by the answer that stands for them.
FAMILIES: dict[str, tuple[str, ...]] = {
    " network": (
        "http",
        "urllib",
        "socket",
        "socketserver",
        "ssl",
        "ftplib",
        "smtplib",
        "imaplib",
        "poplib",
        "nntplib",
        "telnetlib",
        "xmlrpc",
        "email",
        "asyncio",
        "wsgiref",
        "mailbox",
        "ipaddress",
        "cgi",
        "smtpd",
        "asyncore",
    ),
    " text": (
        "re",
        "sre_parse",
        "string",
        "textwrap",
        "difflib",
        "gettext",
        "tokenize",
        "ast",
        "pprint",
        "json",
        "html",
        "xml",
        "csv",
        "configparser",
        "codecs",
        "locale",
        "encodings",
        "inspect",
        "pydoc",
        "doctest",
        "lib2to3",
        "argparse",
        "optparse",
        "unittest",
        "traceback",
        "dis",
        "typing",
    ),
}
_MAX_WORDS = 24


def docstring_rows(seed: int) -> dict[str, list[Row]]:
    """Balanced rows of the splits; no docstring is in two of them."""
    rng = random.Random(f"docstrings/{seed}")
    by_family = {answer: sorted(_texts(names)) for answer, names in FAMILIES.items()}
    for texts in by_family.values():
        rng.shuffle(texts)
    size = min(len(texts) for texts in by_family.values())
    cuts = {"test": (0, size // 4), "dev": (size // 4, size * 3 // 8), "train": (size * 3 // 8, size)}
    splits: dict[str, list[Row]] = {}
    for split, (first, last) in cuts.items():
        rows = [(f"{text} This is about", answer) for answer, texts in by_family.items() for text in texts[first:last]]
        rng.shuffle(rows)
        splits[split] = rows
    return splits


def docstring_texts(held_out: set[str]) -> list[str]:
    """Opening sentences of every other docstring of the library, for pretraining."""
    root = Path(sysconfig.get_paths()["stdlib"])
    names = sorted({path.relative_to(root).parts[0].removesuffix(".py") for path in _sources(root)})
    return sorted(text for text in _texts(tuple(names)) if text not in held_out)


def _texts(names: tuple[str, ...]) -> set[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    texts: set[str] = set()
    for path in _sources(root):
        if path.relative_to(root).parts[0].removesuffix(".py") in names:
            texts.update(_docstrings(path))
    return texts


def _sources(root: Path) -> list[Path]:
    skipped = {"test", "tests", "site-packages", "dist-packages", "idlelib", "turtledemo", "__pycache__"}
    return [path for path in sorted(root.rglob("*.py")) if skipped.isdisjoint(path.relative_to(root).parts)]


def _docstrings(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = (ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds))
    return {text for text in map(_opening, found) if 4 <= len(text.split()) <= _MAX_WORDS}


def _opening(docstring: str) -> str:
    """The first paragraph on one line, in plain ASCII; empty where it is code."""
    text = " ".join(docstring.split("\n\n")[0].split())
    is_plain = text.isascii() and re.fullmatch(r"[\w\s.,;:'\"()/-]+", text) is not None
    return text if is_plain else ""

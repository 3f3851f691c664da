"""Every text of an error that a user may read, with its hint, to be read over in one go.

    python tools/error_texts.py [PATH...]

An error is a call of a class of `prgec.errors` or of one derived from them, by name. Values stand as `{expression}`.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("prgec", "passes", "backends", "runtime_ops")
_ERROR = re.compile(r"[A-Z]\w*(?:Error|Refusal)$")
_BUILT_IN = frozenset(dir(__builtins__))


def text_of(node: ast.expr | None) -> str:
    """Return a string expression as its source, braces around values; empty for none."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return f"{{{ast.unparse(node)}}}"


def errors_in(path: Path) -> Iterator[str]:
    """One line for each error of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            texts = [text_of(each) for each in node.args]
            texts += [f"Hint: {text_of(each.value)}" for each in node.keywords if each.arg == "hint"]
            if _ERROR.match(name) and name not in _BUILT_IN and any(" " in text for text in texts):
                yield f"{path}:{node.lineno}: {name}: " + " | ".join(texts)


def main() -> None:
    """Print the texts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", default=FOLDERS, help="default: all that prgec installs")
    paths = parser.parse_args().paths
    listed = subprocess.run(["git", "ls-files", "-z", "--", *paths], capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        for line in errors_in(Path(name)) if name.endswith(".py") else ():
            print(line)


if __name__ == "__main__":
    main()

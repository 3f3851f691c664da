"""Code of a page, and how a reader runs it: blocks, and the single commands of an indented or fenced example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
# A command of prgec in a line of a shell: at its beginning, or after another one.
COMMAND = re.compile(r"(?:^|[|;&] *)(?:PRGEC_\w+=\S+ )?prgec (?=[a-z])")


def run_block(block: re.Match[str], folder: Path) -> str:
    """Run a block in a folder, which must succeed; return what it prints."""
    shell = {"bash": ["bash", "-eu", "-o", "pipefail", "-c"], "python": [sys.executable, "-c"]}[block["language"]]
    return run([*shell, block["code"]], folder)


def run(words: list[str], folder: Path, typed: str = "") -> str:
    """Run a command in a folder, which must succeed; return what it prints.

    Args:
        words: The command.
        folder: Where.
        typed: Text of its standard input.
    """
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PATH": path},
        input=typed,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words[-1]}\n{done.stdout}"
    return done.stdout


def shell_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with a command of prgec in the code of a page, whole where it goes on, with its number."""
    lines, is_code = text.splitlines(), False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif is_code or line.startswith("    "):
            whole = line
            for following in lines[number:]:
                if not whole.endswith("\\"):
                    break
                whole = f"{whole[:-1]} {following.strip()}"
            if COMMAND.search(whole.strip()):
                yield number, whole.strip()

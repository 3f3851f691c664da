"""Blocks of code of a page, run as a reader types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)


def run_block(block: re.Match[str], folder: Path) -> str:
    """Run a block in a folder, which must succeed; return what it prints."""
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    shell = {"bash": ["bash", "-eu", "-o", "pipefail", "-c"], "python": [sys.executable, "-c"]}[block["language"]]
    done = subprocess.run(
        [*shell, block["code"]],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, block["code"] + done.stdout
    return done.stdout

"""The process that learns one job: `python -m prgec.remote.learner FOLDER`.

A server that was killed leaves its process behind; the next one's waits for the folder's lock, and goes on from the
last epoch on the disk.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
from functools import partial
from pathlib import Path

from prgec.errors import PrgecError
from prgec.remote.jobs import NETWORK_NAME, options_of_folder
from prgec.remote.worker import write_error
from prgec.side.cache import read_cache
from prgec.side.fit import fit
from prgec.side.picture import write_lines

_PR_SET_PDEATHSIG = 1


def learn(folder: Path) -> int:
    """Learn a job from its shards, or go on with it; return the exit code."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    output = folder / NETWORK_NAME
    try:
        cache, options = read_cache(folder / "shards"), options_of_folder(folder)
        done = fit(cache, output, options, resume=True, on_epoch=partial(write_lines, output))
        write_lines(output, done.epochs)
    except PrgecError as error:
        write_error(folder, error.what)
        return error.exit_code
    return 0


def _end_with_parent() -> None:
    """Ask Linux to end this process when its server is gone, however that went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    _end_with_parent()
    sys.exit(learn(Path(sys.argv[1])))

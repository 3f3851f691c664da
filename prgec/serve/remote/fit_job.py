"""The process that learns one job: `python -m prgec.serve.remote.fit_job FOLDER SERVER_PID`.

The process of a killed server lives on; that of the next server waits for the folder's lock, and continues from the
last epoch on the disk.
"""

from __future__ import annotations

import fcntl
import os
import sys
from functools import partial
from pathlib import Path

from prgec.core.machine.parent import end_with_parent


def learn(folder: Path) -> int:
    """Learn a job from its shards, or go on with it; return the exit code."""
    # They take seconds, in which the server may be killed.
    from prgec.errors import PrgecError
    from prgec.serve.remote.jobs import NETWORK_NAME, options_of_folder
    from prgec.serve.remote.worker import write_error
    from prgec.serve.side.cache import read_cache
    from prgec.serve.side.fit import fit
    from prgec.serve.side.picture import write_lines

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


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    sys.exit(learn(Path(sys.argv[1])))

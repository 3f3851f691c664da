"""The process whose memory is measured: `python -m prgec.lab.bench.child JOB` loads a variant and runs a few steps."""

from __future__ import annotations

import sys

from prgec.errors import PrgecError
from prgec.lab.bench.job import Job
from prgec.lab.bench.steps import make_step

# The first step allocates what later ones reuse; a few more show that nothing grows.
_STEPS = 3


def main(job: Job) -> int:
    """Run the steps and return the exit code; the last line on stderr says what went wrong."""
    try:
        step = make_step(job)
        for _ in range(_STEPS):
            step()
    except PrgecError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Job.from_json(sys.argv[1])))

"""Measure what both drivers take to train programs, with packed weights in memory, packed into a file, and mapped.

    python tools/driver_memory.py PROGRAM... [--driver PRGE_TRAIN] [--steps 3] [--json FILE]

The code is in `tests/checks/driver_memory.py`.
"""

from check import start

if __name__ == "__main__":
    start("driver_memory")

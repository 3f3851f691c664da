"""Measure how far a two-sided difference of losses is from the slope it stands for, by eps, backend and bits.

    python tools/eps.py --help

The code is in `tests/checks/eps.py`.
"""

from check import start

if __name__ == "__main__":
    start("eps")

"""Flip bits of a program, and see whether both drivers refuse it: `python tools/flips.py --help`.

The code is in `tests/checks/flips.py`.
"""

from check import start

if __name__ == "__main__":
    start("flips")

"""Compile a tiny random model of every architecture and compare it with transformers.

    python tools/architectures.py --help

The code is in `tests/checks/architectures.py`.
"""

from check import start

if __name__ == "__main__":
    start("architectures")

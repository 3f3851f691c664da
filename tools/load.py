"""Long runs, large files, and two trainers at once: what a process holds early and late.

    python tools/load.py --help

The code is in `tests/checks/load.py`.
"""

from check import start

if __name__ == "__main__":
    start("load")

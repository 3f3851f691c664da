"""Break runs as a phone does, and check that nothing is lost: `make faults`.

    python tools/faults.py --help

The code is in `tests/checks/faults.py`.
"""

from check import start

if __name__ == "__main__":
    start("faults")

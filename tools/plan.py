"""The plan beside what is measured, for programs of many kinds.

    python tools/plan.py --help

The code is in `tests/checks/plan.py`.
"""

from check import start

if __name__ == "__main__":
    start("plan")

"""Change the code in small ways and see whether a test fails: `make mutation`.

    python tools/mutation.py --help

The code is in `tests/checks/mutation.py`.
"""

from check import start

if __name__ == "__main__":
    start("mutation")

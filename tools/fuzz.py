"""Feed damaged files to every reader, in Python and in C++: `make fuzz`.

    python tools/fuzz.py --help

The code is in `tests/checks/fuzz.py`.
"""

from check import start

if __name__ == "__main__":
    start("fuzz")

"""The C++ driver on 64-bit ARM, emulated, beside the same driver on this machine: `make arm64`.

    python tools/arm64.py [--work FOLDER]

The code is in `tests/checks/arm64.py`.
"""

from check import start

if __name__ == "__main__":
    start("arm64")

"""Compare compiled programs with the oracle: textbook MeZO on the unmodified Hugging Face model.

    python tools/parity.py --help

The code is in `tests/checks/parity.py`.
"""

from check import start

if __name__ == "__main__":
    start("parity")

"""Write ten rows in every format, and train and evaluate with each: equal rows give equal losses.

    python tools/formats.py

The work is done in `tests/checks/formats.py`.
"""

from check import start

if __name__ == "__main__":
    start("formats")

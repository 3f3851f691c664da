"""Write ten rows in every format, and train and evaluate with each: equal rows give equal losses.

    python tools/formats.py

What it does is in `tests/checks/formats.py`.
"""

from check import start

if __name__ == "__main__":
    start("formats")

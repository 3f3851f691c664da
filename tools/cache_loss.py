"""Compare what answers cost with one cache and another, token by token.

    python tools/cache_loss.py chat.pte chat8.pte --data dev.jsonl [--adapter FILE]

The code is in `tests/checks/cache_loss.py`.
"""

from check import start

if __name__ == "__main__":
    start("cache_loss")

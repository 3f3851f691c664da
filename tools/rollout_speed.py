"""Measure how fast programs write R answers at once, beside llama.cpp and transformers.

    python tools/rollout_speed.py smollm2 r1.pte r2.pte r4.pte r8.pte [--out docs/reports/rollouts.md]

The code is in `tests/checks/rollout_speed.py`.
"""

from check import start

if __name__ == "__main__":
    start("rollout_speed")

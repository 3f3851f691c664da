"""Let a model learn from rewards by prgec and by TRL, on the same prompts, and compare reward, CPU time and memory.

    python tools/feedback_study.py smollm2 [--seeds 0,1,2] [--out docs/reports/feedback.md]

The code is in `tests/checks/feedback_study.py`.
"""

from check import start

if __name__ == "__main__":
    start("feedback_study")

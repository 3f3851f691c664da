"""Measure how fast programs with a cache talk, and in what memory, beside transformers in f32 and llama.cpp.

    python tools/chat_speed.py --of SmolLM2-135M model.pte smollm2 [--out docs/reports/chat.md]

The code is in `tests/checks/chat_speed.py`.
"""

from check import start

if __name__ == "__main__":
    start("chat_speed")

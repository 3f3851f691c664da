"""The fine-tuning data: three splits of one-sentence reviews that share no wording."""

from __future__ import annotations

import json
import random
from pathlib import Path

from demo.lexicon import ADJECTIVES, NOUNS, POLARITIES, SPLITS, SUBJECTS, VERBS
from demo.templates import REVIEWS, fill

SPLIT_ROWS = {"train": 1000, "dev": 300, "test": 1000}


def review_rows(split: str, seed: int) -> list[tuple[str, int]]:
    """Distinct sentences of one split with their labels (1 positive, 0 negative), half of each, shuffled.

    Args:
        split: `train`, `dev` or `test`.
        seed: Seed of the sampling; the split's name is part of the key.
    """
    rng = random.Random(f"reviews/{split}/{seed}")
    rows: dict[str, int] = {}
    for label, polarity in enumerate(POLARITIES):
        slots = {
            "s": SUBJECTS[split],
            "a": ADJECTIVES[polarity][split],
            "n": NOUNS[polarity][split],
            "v": VERBS[polarity][split],
        }
        wanted = len(rows) + SPLIT_ROWS[split] // 2
        while len(rows) < wanted:
            rows[fill(rng.choice(REVIEWS[split]), slots, rng)] = label
    shuffled = list(rows.items())
    rng.shuffle(shuffled)
    return shuffled


def write_reviews(folder: Path, seed: int) -> None:
    """Write `train.jsonl`, `dev.jsonl` and `test.jsonl` in the fields of SST-2."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        lines = [json.dumps({"sentence": text, "label": label}) + "\n" for text, label in review_rows(split, seed)]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="ascii", newline="\n")

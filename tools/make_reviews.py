"""Write a sentiment task of real movie reviews: train, dev and test as SST-2 has them.

    python tools/make_reviews.py                         # downloads vaderSentiment's source with pip
    python tools/make_reviews.py --package vaderSentiment-3.3.2.tar.gz

The sentences and ratings come with the source of the package vaderSentiment (MIT), in the data set of Hutto and
Gilbert, "VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text" (ICWSM 2014). They are
data of others: this repository holds none of it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from real.packages import package_file
from real.snippets import parse_table, read_table, split_rows

from prgec.errors import PrgecError

REQUIREMENT = "vaderSentiment==3.3.2"
SEED = 9
SPLIT_ROWS = {"test": 600, "dev": 200, "train": 1000}
DEFAULT_FOLDER = Path(__file__).resolve().parent.parent / "studies" / "build" / "reviews"


def main() -> None:
    """Parse the command line and write the splits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=DEFAULT_FOLDER, help="folder to write")
    parser.add_argument("--package", type=Path, help="the source distribution, if it is here already")
    parser.add_argument("--min-rating", type=float, default=1.0, help="leave out sentences rated nearer to 0 than this")
    parser.add_argument("--max-words", type=int, default=20, help="leave out longer sentences")
    options = parser.parse_args()
    try:
        write(options.out, options.package, options.min_rating, options.max_words)
    except PrgecError as error:
        raise SystemExit(f"error: {error}") from error


def write(folder: Path, package: Path | None, min_rating: float, max_words: int) -> None:
    """Write <folder>/<split>.jsonl with the fields of SST-2."""
    with tempfile.TemporaryDirectory() as downloads:
        rated = parse_table(read_table(package_file(package, REQUIREMENT, Path(downloads), is_source=True)))
    splits = split_rows(rated, SPLIT_ROWS, min_rating=min_rating, max_words=max_words, seed=SEED)
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        lines = [json.dumps({"sentence": sentence, "label": label}) + "\n" for sentence, label in rows]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="ascii", newline="\n")
        print(f"{folder / split}.jsonl  {len(rows)} rows")


if __name__ == "__main__":
    main()

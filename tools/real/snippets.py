"""Sentences of movie reviews with the mean of twenty people's ratings, as labelled rows.

The sentences are those of Pang and Lee's Rotten Tomatoes snippets, which SST-2 is made of; the ratings, from -4 to 4,
were collected for VADER (C. J. Hutto and E. Gilbert, ICWSM 2014).
"""

from __future__ import annotations

import html
import io
import random
import tarfile
from collections.abc import Mapping
from pathlib import Path

from prgec.errors import DataError

_ARCHIVE = "hutto_ICWSM_2014.tar.gz"
_TABLE = "movieReviewSnippets_GroundTruth.txt"
_MAX_TABLE_BYTES = 16 << 20

Rated = tuple[float, str]
Row = tuple[str, int]


def read_table(package: Path) -> str:
    """Return the table inside the source distribution of vaderSentiment.

    Raises:
        DataError: If the file is not that.
    """
    try:
        with tarfile.open(package) as outer:
            archive = _member(outer, _ARCHIVE, package)
        with tarfile.open(fileobj=io.BytesIO(archive)) as inner:
            return _member(inner, _TABLE, package).decode("utf-8")
    except (OSError, EOFError, tarfile.TarError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the package: {error}", where=package) from error


def parse_table(text: str) -> list[Rated]:
    """Read lines of number, mean rating and sentence, separated by tabs.

    Entities and doubled apostrophes become the characters they stand for; dashes were lost to runs of blanks before
    the table was published, and one blank remains of each.

    Raises:
        DataError: If a line is not like that.
    """
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            _, rating, sentence = line.split("\t")
            rows.append((float(rating), " ".join(html.unescape(sentence).replace("''", '"').split())))
        except ValueError as error:
            raise DataError(f"expected number, rating and sentence: {error}", where=f"line {number}") from error
    return rows


def split_rows(
    rated: list[Rated], sizes: Mapping[str, int], *, min_rating: float, max_words: int, seed: int
) -> dict[str, list[Row]]:
    """Return balanced splits of sentences, label 1 for liked; no sentence is in two of them.

    Args:
        rated: Ratings and sentences; of those that differ only in case and punctuation the first counts.
        sizes: Rows of each split, even.
        min_rating: Sentences rated nearer to 0 are left out.
        max_words: Longer sentences are left out.
        seed: Draws the splits and their order.

    Raises:
        DataError: If there are too few sentences.
    """
    first = {_key(sentence): (rating, sentence) for rating, sentence in reversed(rated)}
    kept = [each for each in first.values() if abs(each[0]) >= min_rating and len(each[1].split()) <= max_words]
    sides = [sorted(sentence for rating, sentence in kept if (rating > 0) == is_liked) for is_liked in (False, True)]
    needed, found = sum(sizes.values()) // 2, min(map(len, sides))
    if found < needed:
        raise DataError(f"{found} sentences of the rarer kind; {needed} are needed", hint="lower --min-rating")
    rng = random.Random(f"snippets/{seed}")
    for side in sides:
        rng.shuffle(side)
    splits, start = {}, 0
    for split, size in sizes.items():
        end = start + size // 2
        splits[split] = [(sentence, label) for label, side in enumerate(sides) for sentence in side[start:end]]
        rng.shuffle(splits[split])
        start = end
    return splits


def _member(archive: tarfile.TarFile, name: str, package: Path) -> bytes:
    for member in archive:
        if member.isfile() and Path(member.name).name == name and member.size <= _MAX_TABLE_BYTES:
            file = archive.extractfile(member)
            assert file is not None, "it is a file"
            return file.read()
    raise DataError(f"the package has no {name}", where=package, hint="expected the source of vaderSentiment 3.3.2")


def _key(sentence: str) -> str:
    return "".join(c for c in sentence.casefold() if c.isalnum())

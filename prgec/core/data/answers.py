"""Scores of answers given as text: exact match and token F1, as SQuAD's evaluation defines them.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), section 6.1: case, punctuation,
articles and white space do not count, and the best of the references does.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> list[str]:
    """Return the words that count."""
    return _ARTICLE.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if an answer equals one of the references, else 0."""
    return float(any(normalised(answer) == normalised(reference) for reference in references))


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall over words, against the best of the references: in [0, 1]."""
    return max(_f1(normalised(answer), normalised(reference)) for reference in references)


def _f1(answer: list[str], reference: list[str]) -> float:
    if not answer or not reference:
        return float(answer == reference)
    shared = sum((Counter(answer) & Counter(reference)).values())
    return 2 * shared / (len(answer) + len(reference))

"""ROUGE-1, ROUGE-2 and ROUGE-L of answers given as text, by the package that the field uses (extra `rouge`).

Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004); F-measures, words stemmed, the best of the
references for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prgec.core.machine.extras import extra_hint
from prgec.errors import UsageError

_KINDS = ("rouge1", "rouge2", "rougeL")


@dataclass(frozen=True)
class Rouge:
    """Mean F-measures over examples, in [0, 1].

    Attributes:
        rouge1: F1 of words.
        rouge2: F1 of pairs of neighbours.
        rouge_l: F1 of the longest common subsequence.
    """

    rouge1: float
    rouge2: float
    rouge_l: float


def rouge(answers: Sequence[str], references: Sequence[Sequence[str]]) -> Rouge:
    """Compare answers with what is right.

    Args:
        answers: One for each example.
        references: Right answers of each.

    Raises:
        UsageError: If the package is missing.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise UsageError("ROUGE needs a package that is not installed", hint=extra_hint("rouge")) from error
    scorer = RougeScorer(list(_KINDS), use_stemmer=True)
    found = [scorer.score_multi(right, answer) for answer, right in zip(answers, references, strict=True)]
    return Rouge(*(sum(each[kind].fmeasure for each in found) / len(found) for kind in _KINDS))

"""How long rows and completions of given data are, so that a program is compiled to hold them.

Letters: T tokens, K label positions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from prgec.compiler.check import check_options
from prgec.compiler.options import CompileOptions
from prgec.core.contract.names import SIDE
from prgec.core.data.cut import shorten
from prgec.core.data.dataset import Dataset, load_datasets
from prgec.core.data.encode import encode_each, encode_pair
from prgec.core.data.first_tokens import up_to_first
from prgec.core.data.row import Encoded, Encoder, answer_starts
from prgec.core.data.stats import spread_of
from prgec.core.data.task import Example
from prgec.errors import DataError

logger = logging.getLogger(__name__)

# T of documents, which can be cut anywhere; their K is T - 1.
TEXT_SEQ_LEN = 128
_MULTIPLE = 8
# Positions with a label from which on data are text to learn, not questions to answer.
_TEXT_SHARE = 0.5


def fit_options(options: CompileOptions, tokenizer: Encoder, max_positions: int | None) -> CompileOptions:
    """Return options whose T and K hold the data they name; unchanged where they name none.

    Args:
        options: T or K of 0 is chosen; any other is checked.
        tokenizer: The checkpoint's.
        max_positions: Most positions the model knows, None for any number.

    Raises:
        DataError: If the data are bad, or completions are longer than K or T can be.
        UsageError: If T and K contradict each other.
    """
    if not options.data:
        return options
    datasets = load_datasets(
        options.data,
        options.task,
        no_eos=options.no_eos,
        columns=options.columns,
        known=options.answers,
        takes_feedback=True,
    )
    encoded = [each for dataset in datasets for each in encode_choices(dataset, tokenizer)]
    if options.method == SIDE:
        encoded = [up_to_first(each) for each in encoded]
    seq_len, num_labels = lengths_of(encoded, options, max_positions)
    rows = [each for each in encoded if not each.is_text]
    # A conversation that is too long loses turns, and what was to be learned of them.
    fitting, lost = shorten(rows, seq_len)
    _check_targets([len(each.row.targets) for each in fitting], min(num_labels, seq_len - 1), num_labels < seq_len)
    if lost:
        logger.warning(
            "%d of %d rows are longer than T = %d, the longest has %d tokens: cut from the left. The first is %s, "
            "which %s",
            len(lost),
            len(rows),
            seq_len,
            max(len(each.row.tokens) for each in rows),
            *lost[0],
        )
    if not options.seq_len and (shorter := shorter_length(rows, seq_len, options.generate)):
        logger.warning("T = %d holds the longest row, and memory grows with T: %s", seq_len, shorter)
    # Files of several tasks have no answers in common.
    answers = {dataset.answers for dataset in datasets}
    fitted = replace(
        options, seq_len=seq_len, num_labels=num_labels, answers=answers.pop() if len(answers) == 1 else options.answers
    )
    check_options(fitted)
    if options.method == "shortcut":
        _remark_on_text(encoded)
    return fitted


def lengths_of(encoded: Sequence[Encoded], options: CompileOptions, max_positions: int | None) -> tuple[int, int]:
    """Return the T and K that hold rows, as far as options leave them open.

    Args:
        encoded: Every row the program is to hold.
        options: T or K of 0 is chosen.
        max_positions: Most positions the model knows, None for any number.
    """
    rows = [each for each in encoded if not each.is_text]
    most = _most_targets(rows)
    longest = max(_needed(rows, options.generate), default=0)
    if len(rows) < len(encoded):
        longest = max(longest, TEXT_SEQ_LEN)
    seq_len = options.seq_len or min(_rounded_up(longest), max_positions or longest + _MULTIPLE)
    return seq_len, options.num_labels or (most if len(rows) == len(encoded) else seq_len - 1)


def shorter_length(encoded: Sequence[Encoded], seq_len: int, generate: bool = False) -> str:
    """Say which T cuts at most one row of a hundred; empty where that is more than half of the one that cuts none.

    Args:
        encoded: Every row, uncut; documents do not count, which can be cut anywhere.
        seq_len: The T that was chosen for them.
        generate: Whether T also holds an answer that is generated.
    """
    lengths = _needed([each for each in encoded if not each.is_text], generate)
    shorter = _rounded_up(spread_of(lengths).p99) if lengths else seq_len
    if 2 * shorter > seq_len:
        return ""
    num_cut = sum(length > shorter for length in lengths)
    return f"--seq-len {shorter} would cut {num_cut} of {len(lengths)} rows, from the left"


def _needed(rows: Sequence[Encoded], generate: bool) -> list[int]:
    """Return the tokens that each row takes, with room for tokens generated after its last prompt."""
    lengths = [len(each.row.tokens) for each in rows]
    if not generate:
        return lengths
    starts = [answer_starts(each.row) for each in rows]
    # An answer that is generated may be as long as the longest that is known.
    ends = [[*each[1:], len(row.row.label_pos)] for each, row in zip(starts, rows, strict=True)]
    room = max(
        (end - start for pair in zip(starts, ends, strict=True) for start, end in zip(*pair, strict=True)), default=0
    )
    return [
        max(length, each.row.label_pos[start[-1]] + room)
        for each, length, start in zip(rows, lengths, starts, strict=True)
    ]


def _most_targets(rows: Sequence[Encoded]) -> int:
    return max((len(each.row.targets) for each in rows), default=0)


def _rounded_up(num_tokens: int) -> int:
    return -(-num_tokens // _MULTIPLE) * _MULTIPLE


def encode_choices(dataset: Dataset, tokenizer: Encoder) -> list[Encoded]:
    """Encode every item with its right answer, and with every candidate it is evaluated against."""
    if not dataset.has_choices:
        return encode_each(dataset.examples, tokenizer)
    candidates, examples = dataset.candidates(), [each for each in dataset.examples if isinstance(each, Example)]
    return [encode_pair(item, text, tokenizer) for item in examples for text in item.candidates or candidates]


def _remark_on_text(encoded: list[Encoded]) -> None:
    """Warn where a gradient without paths across positions is worse: where most positions have a label of their own."""
    share = sum(len(each.row.targets) for each in encoded) / max(1, sum(len(each.row.tokens) for each in encoded))
    if share >= _TEXT_SHARE:
        logger.warning(
            "%.0f %% of the positions of these rows are trained: --method exact learns text better than shortcut, "
            "whose gradient below the last block has no paths from one position to another",
            100 * share,
        )


def _check_targets(num_targets: list[int], limit: int, is_k: bool) -> None:
    over = [count for count in num_targets if count > limit]
    if over:
        name = f"K = {limit} label positions" if is_k else f"T = {limit + 1} tokens"
        raise DataError(
            f"{len(over)} of {len(num_targets)} completions are longer than {name}; the longest has {max(over)} tokens",
            hint="raise --label-tokens or --seq-len, or leave them out",
        )

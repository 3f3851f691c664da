"""How long rows and completions of given data are, so that a program is compiled to hold them.

Letters: T tokens, K label positions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from prgec.compile.check import check_options
from prgec.compile.options import CompileOptions
from prgec.contract.names import SIDE
from prgec.data.dataset import Dataset, load_dataset
from prgec.data.encode import Encoded, Encoder, encode_item, encode_pair
from prgec.data.first_tokens import up_to_first
from prgec.data.stats import spread_of
from prgec.data.task import Example
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
    encoded = [each for path in options.data for each in encode_choices(load_dataset(path, options.task), tokenizer)]
    if options.method == SIDE:
        encoded = [up_to_first(each) for each in encoded]
    seq_len, num_labels = lengths_of(encoded, options, max_positions)
    rows = [each for each in encoded if not each.is_text]
    _check_targets([len(each.row.targets) for each in rows], min(num_labels, seq_len - 1), num_labels < seq_len)
    num_long = sum(len(each.row.tokens) > seq_len for each in rows)
    if num_long:
        logger.warning(
            "%d of %d rows are longer than T = %d, the longest has %d tokens: cut from the left",
            num_long,
            len(rows),
            seq_len,
            max(len(each.row.tokens) for each in rows),
        )
    if not options.seq_len and (shorter := shorter_length(rows, seq_len, options.generate)):
        logger.warning("T = %d holds the longest row, and memory grows with T: %s", seq_len, shorter)
    fitted = replace(options, seq_len=seq_len, num_labels=num_labels)
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
    """Return the tokens that each row takes, with room for tokens generated after its prompt."""
    if not generate:
        return [len(each.row.tokens) for each in rows]
    # An answer that is generated may be as long as the longest that is known.
    room = _most_targets(rows)
    return [each.row.label_pos[0] + room for each in rows]


def _most_targets(rows: Sequence[Encoded]) -> int:
    return max((len(each.row.targets) for each in rows), default=0)


def _rounded_up(num_tokens: int) -> int:
    return -(-num_tokens // _MULTIPLE) * _MULTIPLE


def encode_choices(dataset: Dataset, tokenizer: Encoder) -> Iterator[Encoded]:
    """Encode every item with its right answer, and with every candidate it is evaluated against."""
    candidates = dataset.candidates()
    for item in dataset.examples:
        if isinstance(item, Example):
            yield from (encode_pair(item, choice, tokenizer) for choice in _choices(item, candidates))
        else:
            yield encode_item(item, tokenizer)


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


def _choices(item: Example, candidates: tuple[str, ...]) -> tuple[str, ...]:
    own = item.candidates or candidates
    return own or ((item.completion,) if item.completion is not None else ())

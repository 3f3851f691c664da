"""How long rows and completions of given data are, so that a program is compiled to hold them.

Letters: T tokens, K label positions.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from prgec.compiler.check import check_options
from prgec.compiler.options import CompileOptions
from prgec.core.contract.arrays import IntArray
from prgec.core.contract.names import SIDE
from prgec.core.data.cut import Shortening
from prgec.core.data.dataset import Dataset, load_datasets
from prgec.core.data.encode import encode_each, encode_pairs
from prgec.core.data.first_tokens import up_to_first
from prgec.core.data.kept_rows import kept_encoded
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
    rows: Iterator[Encoded] = (each for dataset in datasets for each in encode_choices(dataset, tokenizer))
    if options.method == SIDE:
        rows = map(up_to_first, rows)
    encoded = kept_encoded(rows, tokenizer)
    lengths = Lengths.of(encoded)
    seq_len, num_labels = lengths_of(lengths, options, max_positions)
    # A conversation that is too long loses turns, and what was to be learned of them.
    shorten = Shortening(seq_len)
    fitting = map(shorten, (each for each in encoded if not each.is_text))
    _check_targets([len(each.row.targets) for each in fitting], min(num_labels, seq_len - 1), num_labels < seq_len)
    if shorten.num_lost:
        logger.warning("%s: cut from the left. The first is %s, which %s", shorten, *shorten.first_lost)
    if not options.seq_len and (shorter := shorter_length(lengths, seq_len, options.generate)):
        logger.warning("T = %d holds the longest row, and memory grows with T: %s", seq_len, shorter)
    # Files of several tasks have no answers in common.
    answers = {dataset.answers for dataset in datasets}
    fitted = replace(
        options, seq_len=seq_len, num_labels=num_labels, answers=answers.pop() if len(answers) == 1 else options.answers
    )
    check_options(fitted)
    if options.method == "shortcut":
        _remark_on_text(lengths)
    return fitted


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Lengths of rows.

    Attributes:
        tokens: i64[n], tokens of each row but documents.
        last_prompts: i64[n], tokens of each before its last answer.
        targets: Most targets of one of them.
        answer: Targets of the longest answer in one of them; a conversation has several.
        num_texts: Documents, which can be cut anywhere.
        share: Share of the positions that have a label, of all rows.
    """

    tokens: IntArray
    last_prompts: IntArray
    targets: int
    answer: int
    num_texts: int
    share: float

    @classmethod
    def of(cls, encoded: Iterable[Encoded]) -> Lengths:
        """Measure rows, each taken once."""
        tokens, last_prompts = array("q"), array("q")
        targets = answer = num_texts = num_tokens = num_targets = 0
        for each in encoded:
            row = each.row
            num_tokens, num_targets = num_tokens + len(row.tokens), num_targets + len(row.targets)
            if each.is_text:
                num_texts += 1
                continue
            starts = answer_starts(row)
            ends = [*starts[1:], len(row.label_pos)]
            tokens.append(len(row.tokens))
            last_prompts.append(row.label_pos[starts[-1]])
            targets = max(targets, len(row.targets))
            answer = max(answer, *(end - start for start, end in zip(starts, ends, strict=True)))
        share = num_targets / max(1, num_tokens)
        return cls(
            tokens=np.array(tokens),
            last_prompts=np.array(last_prompts),
            targets=targets,
            answer=answer,
            num_texts=num_texts,
            share=share,
        )

    def needed(self, generate: bool) -> IntArray:
        """Return the tokens that each row takes: i64[n].

        Args:
            generate: Whether an answer is generated after its last prompt, as long as the longest that is known.
        """
        return np.maximum(self.tokens, self.last_prompts + self.answer) if generate else self.tokens


def lengths_of(lengths: Lengths, options: CompileOptions, max_positions: int | None) -> tuple[int, int]:
    """Return the T and K that hold rows, as far as options leave them open.

    Args:
        lengths: Those of every row the program is to hold.
        options: T or K of 0 is chosen.
        max_positions: Most positions the model knows, None for any number.
    """
    longest = int(lengths.needed(options.generate).max(initial=TEXT_SEQ_LEN if lengths.num_texts else 0))
    seq_len = options.seq_len or min(_rounded_up(longest), max_positions or longest + _MULTIPLE)
    return seq_len, options.num_labels or (seq_len - 1 if lengths.num_texts else lengths.targets)


def shorter_length(lengths: Lengths, seq_len: int, generate: bool = False) -> str:
    """Say which T cuts at most one row of a hundred; empty where that is more than half of the one that cuts none.

    Args:
        lengths: Those of every row, uncut; documents do not count, which can be cut anywhere.
        seq_len: The T that was chosen for them.
        generate: Whether T also holds an answer that is generated.
    """
    needed = lengths.needed(generate)
    shorter = _rounded_up(spread_of(needed).p99) if len(needed) else seq_len
    if 2 * shorter > seq_len:
        return ""
    return f"--seq-len {shorter} would cut {int((needed > shorter).sum())} of {len(needed)} rows, from the left"


def _rounded_up(num_tokens: int) -> int:
    return -(-num_tokens // _MULTIPLE) * _MULTIPLE


def encode_choices(dataset: Dataset, tokenizer: Encoder) -> Iterator[Encoded]:
    """Encode every item with its right answer, and with every candidate it is evaluated against."""
    if not dataset.has_choices:
        yield from encode_each(dataset.examples, tokenizer)
        return
    candidates = dataset.candidates()
    examples = (item for item in dataset.examples if isinstance(item, Example))
    yield from encode_pairs(((item, text) for item in examples for text in item.candidates or candidates), tokenizer)


def _remark_on_text(lengths: Lengths) -> None:
    """Warn where a gradient without paths across positions is worse: where most positions have a label of their own."""
    if lengths.share >= _TEXT_SHARE:
        logger.warning(
            "%.0f %% of the positions of these rows are trained: --method exact learns text better than shortcut, "
            "whose gradient below the last block has no paths from one position to another",
            100 * lengths.share,
        )


def _check_targets(num_targets: list[int], limit: int, is_k: bool) -> None:
    over = [count for count in num_targets if count > limit]
    if over:
        name = f"K = {limit} label positions" if is_k else f"T = {limit + 1} tokens"
        raise DataError(
            f"{len(over)} of {len(num_targets)} completions are longer than {name}; the longest has {max(over)} tokens",
            hint="raise --label-tokens or --seq-len, or leave them out",
        )

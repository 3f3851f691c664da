"""A program compiled with --data holds every row of it, with no position to spare but rounding."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prgec.compiler.compile import build_graphs
from prgec.compiler.lengths import TEXT_SEQ_LEN, fit_options
from prgec.compiler.options import CompileOptions
from prgec.errors import DataError, UsageError
from tests.chat_tokenizer import byte_tokenizer
from tests.data.test_encode import CharTokenizer
from tests.models import TinyLlama


def _options(tmp_path: Path, *records: dict[str, Any], **options: Any) -> CompileOptions:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    chosen = {"seq_len": 0, "num_labels": 0, "no_eos": True, **options}
    return CompileOptions(model="m", output=tmp_path / "m.pte", data=(path,), **chosen)


def _fit(options: CompileOptions, max_positions: int | None = None) -> tuple[int, int]:
    fitted = fit_options(options, CharTokenizer(), max_positions)  # type: ignore[arg-type]
    return fitted.seq_len, fitted.num_labels


# Enough different completions that none is a choice for the others' prompts.
FREE = [{"prompt": "p", "completion": chr(97 + i)} for i in range(17)]


def _row(prompt: int, completion: int) -> dict[str, str]:
    return {"prompt": "p" * prompt, "completion": "c" * completion}


def test_t_and_k_are_those_of_the_longest(tmp_path: Path) -> None:
    # BOS, 20 and 3 characters, the last of which is only predicted: 23; rounded up to a multiple of 8.
    assert _fit(_options(tmp_path, _row(20, 3), _row(2, 7), *FREE)) == (24, 7)
    # As a choice, the long completion is also scored after the long prompt.
    assert _fit(_options(tmp_path, _row(20, 3), _row(2, 7), _row(2, 7))) == (32, 7)


def test_the_end_of_a_free_answer_takes_a_position_and_a_label(tmp_path: Path) -> None:
    assert _fit(_options(tmp_path, _row(20, 4), no_eos=True)) == (24, 4)
    assert _fit(_options(tmp_path, _row(20, 4), no_eos=False)) == (32, 5)
    # A choice has no end to learn.
    assert _fit(_options(tmp_path, _row(20, 4), _row(20, 4), _row(9, 3), no_eos=False)) == (24, 4)


def test_a_file_named_twice_is_refused(tmp_path: Path) -> None:
    options = _options(tmp_path, _row(4, 2))
    with pytest.raises(UsageError, match=r"a data file is named twice \(.*rows.jsonl\)"):
        _fit(replace(options, data=options.data * 2))


def test_files_of_one_task_share_their_answers(tmp_path: Path) -> None:
    options = _options(tmp_path, *[_row(4, 2)] * 2, *[_row(4, 9)] * 2, no_eos=False)
    dev = tmp_path / "dev.jsonl"
    dev.write_text(json.dumps(_row(30, 2)))
    # BOS, the long prompt and the long answer that only the other file has, and no EOS.
    assert _fit(replace(options, data=(*options.data, dev))) == (40, 9)


def test_wrong_candidates_count_too(tmp_path: Path) -> None:
    record = {"premise": "a", "choice1": "b", "choice2": "long answer", "question": "cause", "label": 0}
    assert _fit(_options(tmp_path, record))[1] == len(" long answer")


def test_generation_leaves_room_behind_the_longest_prompt(tmp_path: Path) -> None:
    assert _fit(_options(tmp_path, _row(20, 1), _row(1, 9), *FREE)) == (24, 9)
    assert _fit(_options(tmp_path, _row(20, 1), _row(1, 9), *FREE, generate=True)) == (32, 9)


CHATML = (
    "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


@pytest.mark.parametrize(("generate", "seq_len"), [(False, 48), (True, 64)])
def test_a_chat_leaves_room_behind_its_last_prompt(tmp_path: Path, generate: bool, seq_len: int) -> None:
    """Two turns: the first answer is the longest, and may come again where the last one was."""
    turns = [("user", "a"), ("assistant", "b" * 12), ("user", "c"), ("assistant", "d")]
    record = {"messages": [{"role": role, "content": text} for role, text in turns]}
    # Without the last token 48; the last prompt is 47, after which 13 more may come, the last of them unread.
    assert len("user:a;assistant:bbbbbbbbbbbb;user:c;assistant:d;") == 49
    options = _options(tmp_path, record, generate=generate)
    fitted = fit_options(options, byte_tokenizer(CHATML), None)
    assert (fitted.seq_len, fitted.num_labels) == (seq_len, len("bbbbbbbbbbbb;") + len("d;"))


def test_a_program_knows_the_answers_of_its_data(tmp_path: Path) -> None:
    rows = [_row(4, 2), _row(4, 2), _row(4, 9)]
    fitted = fit_options(_options(tmp_path, *rows), CharTokenizer(), None)  # type: ignore[arg-type]
    assert fitted.answers == ("cc", "c" * 9)
    # The answers somebody names hold where the data have no others, also where there is one.
    named = fit_options(_options(tmp_path, _row(4, 2), answers=("cc", "no")), CharTokenizer(), None)  # type: ignore[arg-type]
    assert named.answers == ("cc", "no")
    assert fit_options(_options(tmp_path, _row(4, 2)), CharTokenizer(), None).answers == ()  # type: ignore[arg-type]


def test_several_files(tmp_path: Path) -> None:
    options = _options(tmp_path, _row(4, 2))
    longer = tmp_path / "dev.jsonl"
    longer.write_text(json.dumps(_row(40, 1)))
    assert _fit(replace(options, data=(*options.data, longer))) == (48, 2)


def test_model_bounds_t(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="prgec"):
        assert _fit(_options(tmp_path, _row(100, 3), *FREE), max_positions=64) == (64, 3)
    assert "1 of 18 rows are longer than T = 64, the longest has 103 tokens" in caplog.text


@pytest.mark.parametrize(
    ("num_long", "seq_len", "remark"),
    [
        (1, 0, "T = 304 holds the longest row, and memory grows with T: --seq-len 24 would cut 1 of 120 rows"),
        (1, 24, "1 of 120 rows are longer than T = 24, the longest has 303 tokens"),
        (2, 0, ""),
    ],
)
def test_says_where_few_rows_make_t(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_long: int, seq_len: int, remark: str
) -> None:
    """Where one row of a hundred at most is more than twice as long as the others."""
    rows = [_row(20, 3)] * (120 - num_long - len(FREE)) + [_row(300, 3)] * num_long
    with caplog.at_level(logging.WARNING, logger="prgec"):
        assert _fit(_options(tmp_path, *rows, *FREE, seq_len=seq_len)) == (seq_len or 304, 3)
    assert remark in caplog.text and (len(caplog.messages) == 1) == bool(remark)


@pytest.mark.parametrize(("generate", "shorter"), [(False, 24), (True, 32)])
def test_a_shorter_t_leaves_room_for_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, generate: bool, shorter: int
) -> None:
    """The longest answer has nine tokens, and follows the twenty of most prompts."""
    rows = [_row(20, 1)] * 102 + [_row(300, 9)]
    with caplog.at_level(logging.WARNING, logger="prgec"):
        _fit(_options(tmp_path, *rows, *FREE, generate=generate))
    assert f"--seq-len {shorter} would cut 1 of 120 rows" in caplog.text


@pytest.mark.parametrize(
    ("record", "share"), [({"text": "x" * 99}, 100), (_row(4, 16), 80), (_row(9, 10), 53), (_row(20, 3), 0)]
)
@pytest.mark.parametrize("method", ["exact", "shortcut", "prge"])
def test_says_where_the_shortcut_learns_less(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, record: dict[str, Any], share: int, method: str
) -> None:
    """In one line, and only where most positions have a label."""
    with caplog.at_level(logging.WARNING, logger="prgec"):
        _fit(_options(tmp_path, record, method=method))
    lines = [each for each in caplog.messages if "exact learns text better" in each]
    assert len(lines) == (method == "shortcut" and share > 0) and not any("\n" in line for line in lines)
    assert all(
        line.startswith(f"{share} % of the positions of these rows are trained: --method exact") for line in lines
    )


def test_documents_are_cut_to_any_length(tmp_path: Path) -> None:
    assert _fit(_options(tmp_path, {"text": "x" * 5000})) == (TEXT_SEQ_LEN, TEXT_SEQ_LEN - 1)
    assert _fit(_options(tmp_path, {"text": "x" * 5000}, seq_len=64, num_labels=16)) == (64, 16)


def test_given_k_is_checked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 of 20 completions are longer than K = 2 label positions; the longest has 5"):
        _fit(_options(tmp_path, _row(9, 5), _row(9, 3), _row(9, 2), *FREE, num_labels=2))
    with pytest.raises(DataError, match="1 of 1 completions are longer than T = 8 tokens; the longest has 30 tokens"):
        _fit(_options(tmp_path, _row(9, 30), seq_len=8))


def test_without_data_nothing_changes(tmp_path: Path) -> None:
    options = CompileOptions(model="m", output=tmp_path / "m.pte")
    assert fit_options(options, CharTokenizer(), 16) is options  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["prge", "exact"])
def test_passes_are_made_for_what_data_say(method: str, tmp_path: Path) -> None:
    """The scale of a half-precision loss depends on K."""
    checkpoint = TinyLlama(num_layers=2, hidden_size=64).write(tmp_path / "checkpoint")
    record = {"prompt": "the film was", "completion": " a great film and the plot"}
    sizes = {"backend": "qnn", "method": method, "q": 2, "batch_size": 2, "rank": 4}
    chosen = replace(_options(tmp_path, record, **sizes), model=str(checkpoint))
    m = build_graphs(chosen).manifest
    said = build_graphs(replace(chosen, data=(), seq_len=m.seq_len, num_labels=m.num_labels)).manifest
    assert m.num_labels > 1 and m.pipeline == said.pipeline

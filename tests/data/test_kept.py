"""Values as packed bytes: equal to what went in, however many, and none in memory beyond a few."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prgec.core.data import kept
from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import encode_each
from prgec.core.data.kept import Kept
from prgec.core.data.kept_rows import KeptRows, kept_encoded
from prgec.core.data.row import Row
from prgec.core.data.rows_file import fingerprint
from prgec.core.data.task import Example
from prgec.errors import DataError
from tests.chat_tokenizer import byte_tokenizer
from tests.checks.formats import TEMPLATE

ROWS = [
    Row((1, 2, 70000), (0, 2), (5, 6)),
    Row((3,), (0,), (4,), truncated=True),
    Row((7, 8), (1,), (9,), False, (0.5,)),
]


@pytest.mark.parametrize("buffer_bytes", [1, 40, 1 << 20])
def test_what_is_kept_comes_back(monkeypatch: pytest.MonkeyPatch, buffer_bytes: int) -> None:
    """In memory, in the file, and in both."""
    monkeypatch.setattr(kept, "_BUFFER_BYTES", buffer_bytes)
    rows = KeptRows(ROWS)
    assert list(rows) == ROWS and rows[-1] == ROWS[-1] and rows[1:] == ROWS[1:] and rows == ROWS
    assert list(reversed(rows)) == ROWS[::-1]
    assert fingerprint(rows) == fingerprint(ROWS)
    with pytest.raises(IndexError):
        rows[len(ROWS)]


def test_the_file_has_no_name_and_goes_with_the_object(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No row of a user's stays on the disk."""
    monkeypatch.setattr(kept, "_BUFFER_BYTES", 1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    words = Kept(str.encode, bytes.decode, ["a", "b"])
    assert list(words) == ["a", "b"] and not list(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del words
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the folder and the way out."""
    monkeypatch.setattr(kept, "_BUFFER_BYTES", 1)
    monkeypatch.setattr("tempfile.tempdir", "/proc")
    with pytest.raises(DataError, match="cannot keep the rows in a temporary file: .* TMPDIR"):
        Kept(str.encode, bytes.decode, ["a"])


def test_uncut_rows_come_back_with_their_turns(tmp_path: Path) -> None:
    """A conversation that was kept is made shorter as one that was not."""
    path = tmp_path / "chats.jsonl"
    turns = [{"role": role, "content": role * 9} for role in ("system", "user", "assistant", "user", "assistant")]
    path.write_text(json.dumps({"messages": turns, "weight": 2}) + "\n")
    tokenizer = byte_tokenizer(TEMPLATE)
    (direct,) = encode_each(load_dataset(path).examples, tokenizer)
    (again,) = kept_encoded([direct], tokenizer)
    assert (again.row, again.where, again.weight, again.has_bos) == (direct.row, direct.where, 2.0, direct.has_bos)
    assert direct.shorter is not None and again.shorter is not None
    assert again.shorter(40) == direct.shorter(40)


def test_items_are_read_again_in_any_order(tmp_path: Path) -> None:
    """Samples of samples and other ends read the same items."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}?", "completion": f" {n}"}) + "\n" for n in range(20)))
    items = load_dataset(path).examples
    assert [each.where for each in items] == [f"{path}, line {n}" for n in range(1, 21)]
    some = load_dataset(path).sample(8, 0).sample(3, 1).examples
    assert len(some) == 3 and all(each in items for each in some)
    first = items[:1][0]
    assert isinstance(first, Example) and first.ends and first.completion == " 0"


_MEASURE = """
import resource, sys
from pathlib import Path
from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import RowSizes, encode_items
from tests.chat_tokenizer import byte_tokenizer
from tests.checks.formats import TEMPLATE
tokenizer = byte_tokenizer(TEMPLATE)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = encode_items(load_dataset(Path(sys.argv[1])).examples, tokenizer, RowSizes(4096, 4096, 1 << 20))
assert len(rows) == int(sys.argv[2])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
def test_many_rows_take_no_memory(tmp_path: Path) -> None:
    """Two buffers of 32 MiB at most, while the rows themselves are 150 MB of tokens."""
    path, count = tmp_path / "chats.jsonl", 12000
    turns = [{"role": "user", "content": "q" * 1500}, {"role": "assistant", "content": "a" * 600}]
    path.write_text((json.dumps({"messages": turns}) + "\n") * count)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path), str(count)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 120

"""A little of `make fuzz`: damaged files are refused with one printable line, and nothing else happens."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.checks.fuzz import choose, fuzz
from tests.checks.fuzz_inputs import mutate
from tests.checks.fuzz_readers import NATIVE_KINDS, Reader, make_readers

KINDS = (
    "journal",
    "rows",
    "jsonl",
    "adapter",
    "manifest",
    "tokenizer",
    "envelope",
    "program",
    "shard",
    "network",
    "gguf",
    "template",
)


@pytest.fixture(scope="module")
def readers(tiny_pte: Path, tokenizer_blob: bytes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    return {each.kind: each for each in make_readers(tiny_pte, tokenizer_blob, tmp_path_factory.mktemp("fuzz"))}


def test_every_reader_is_tried(readers: dict[str, Reader]) -> None:
    assert set(readers) == set(KINDS) > set(NATIVE_KINDS)


def test_kinds_have_the_same_numbers_in_cpp() -> None:
    source = (Path(__file__).parent / "readers.h").read_text(encoding="utf-8")
    names = re.search(r"enum class Kind : uint32_t \{ (.*) \};", source)
    assert names and {name.lower(): number for number, name in enumerate(names[1].split(", "))} == NATIVE_KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_no_input_breaks_a_reader(readers: dict[str, Reader], kind: str, tmp_path: Path) -> None:
    (tally,) = fuzz(readers[kind], random.Random(7), tmp_path, None, lambda tried: tried >= 150)
    assert tally.crashes == []
    assert tally.accepted < tally.tried
    # The fixture's program has no report of its delegates, so nothing like it can be inspected.
    assert tally.accepted or kind == "program"


def test_a_reader_that_breaks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.checks.fuzz.KEPT", tmp_path / "kept")
    reader = Reader("journal", lambda path: path.read_bytes()[200], [b"short"])
    (tally,) = fuzz(reader, random.Random(0), tmp_path, None, lambda tried: tried >= 1)
    assert len(tally.crashes) == 1 and "IndexError" in tally.crashes[0]
    assert [path.read_bytes() for path in (tmp_path / "kept").iterdir()] == [b"short"]


def test_repaired_checksums_let_damage_through(readers: dict[str, Reader]) -> None:
    rng = random.Random(3)
    for kind, at in (("journal", 12), ("rows", 12)):
        good = readers[kind].seeds[0]
        mutated = [mutate(good, rng, kind) for _ in range(50)]
        assert sum(data[at : at + 4] != good[at : at + 4] for data in mutated) > 10


def test_a_kind_that_is_not_there_is_refused(readers: dict[str, Reader]) -> None:
    every = tuple(readers.values())
    assert [each.kind for each in choose(every, None)] == list(readers)
    assert choose(every, "jsonl") == [readers["jsonl"]]
    with pytest.raises(SystemExit, match="unknown kind 'jurnal'. Hint: known: .*jsonl"):
        choose(every, "jurnal")
    with pytest.raises(SystemExit, match="unknown kind 'jsonl'"):
        choose(every, "jsonl", native=True)

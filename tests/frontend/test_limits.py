"""Limits read without weights are those that a compilation finds with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from prgec.compiler.frontend.limits import read_limits
from prgec.compiler.options import CompileOptions
from prgec.compiler.source import load_source
from tests.classifiers import ENCODERS, Encoder
from tests.models import TinyLlama


@pytest.mark.parametrize("encoder", ENCODERS, ids=str)
def test_of_a_classifier(encoder: Encoder, tmp_path: Path) -> None:
    """Its classes, and the positions its first token leaves free."""
    folder = encoder.write(tmp_path / "m")
    source, _ = load_source(CompileOptions(model=str(folder), num_labels=1, seq_len=8, method="prge"))
    found = read_limits(str(folder))
    assert (found.vocab_size, found.max_positions) == (source.vocab_size, source.max_positions)
    assert source.head is not None and found.tokenizer.classes == source.head.classes


def test_of_a_language_model(tmp_path: Path) -> None:
    folder = TinyLlama(max_positions=48).write(tmp_path / "m")
    source, _ = load_source(CompileOptions(model=str(folder), seq_len=8))
    found = read_limits(str(folder))
    assert (found.vocab_size, found.max_positions) == (source.vocab_size, source.max_positions) == (320, 48)
    assert found.tokenizer.classes == ()

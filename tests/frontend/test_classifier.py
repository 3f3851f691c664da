"""Encoders of every kind: the loss of padded rows is that of the untouched model on rows without padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from prgec.cli.main import main
from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.frontend.classifier import with_classes
from prgec.compiler.frontend.model import export_loss, load_model
from prgec.compiler.frontend.tokenizer import pack_tokenizer
from tests.classifiers import KINDS, Encoder

LENGTHS, SEQ_LEN = (30, 21, 9), 32


def _name(encoder: Encoder) -> str:
    return f"{encoder.model_type}{'-mean' if encoder.more.get('classifier_pooling') == 'mean' else ''}"


def _rows(encoder: Encoder) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Random rows with one separator inside each, padded and not."""
    first, separator, pad = (2, 3, 0) if encoder.is_bert else (0, 2, 1)
    generator = torch.Generator().manual_seed(1)
    rows = []
    for length in LENGTHS:
        row = torch.randint(5, 25, (length,), generator=generator)
        row[0], row[length // 2] = first, separator
        rows.append(row)
    padded = torch.full((len(rows), SEQ_LEN), pad)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded, rows


@pytest.mark.parametrize("encoder", KINDS, ids=_name)
def test_losses_are_those_of_rows_without_padding(encoder: Encoder, tmp_path: Path) -> None:
    """Masks, positions, windows and types of texts are those of transformers."""
    checkpoint = find_checkpoint(str(encoder.write(tmp_path)))
    _, head = with_classes(checkpoint, load_model(checkpoint), pack_tokenizer(checkpoint.path))
    program = export_loss(load_model(checkpoint), num_rows=3, seq_len=40, num_labels=1, dynamic=True, head=head)
    padded, rows = _rows(encoder)
    targets = torch.tensor([[0], [1], [1]])
    found: Any = program.module(padded, torch.zeros(3, 1, dtype=torch.int64), targets)
    model: Any = encoder.build()
    has_types = encoder.is_bert and encoder.model_type not in ("distilbert", "modernbert", "eurobert")
    for row, target, loss in zip(rows, targets, found[0] if isinstance(found, tuple | list) else found, strict=True):
        after = torch.arange(len(row)) > len(row) // 2
        # DeBERTa is published without types of texts.
        types = {"token_type_ids": after.long()[None]} if has_types and "deberta" not in encoder.model_type else {}
        with torch.no_grad():
            expected = torch.nn.functional.cross_entropy(model(row[None], **types).logits, target)
        torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [each for each in KINDS if each.model_type not in ("bert", "roberta")], ids=_name)
def test_every_kind_learns(
    encoder: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its exact gradient, or by measured losses where that has a step without a derivative."""
    monkeypatch.chdir(tmp_path)
    data, program = tmp_path / "rows.jsonl", tmp_path / "m.pte"
    data.write_text('{"sentence": "bright film", "label": 1}\n{"sentence": "dull plot", "label": 0}\n' * 4)
    shapes = ["--seq-len", "16", "--label-tokens", "1", "--no-cache", "-o", str(program)]
    checkpoint = str(encoder.write(tmp_path / "c"))
    is_exact = main(["compile", checkpoint, "--method", "exact", *shapes]) == 0
    if not is_exact:
        assert "differentiate: " in capsys.readouterr().err
        assert main(["compile", checkpoint, "--method", "prge", *shapes]) == 0
    assert is_exact == (encoder.model_type in _EXACT)
    assert main(["run", str(program), "--data", str(data), "--task", "sst2", "--steps", "30"]) == 0
    assert "train loss" in capsys.readouterr().out


_EXACT = ("distilbert", "electra", "ernie", "nomic_bert", "roberta-prelayernorm", "xlm-roberta-xl", "data2vec-text")

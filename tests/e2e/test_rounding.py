"""Weights rounded by what layers compute over prompts: the program is nearer to the unmodified model than without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prgec.cli.main import main
from prgec.compiler.compile import build_graphs
from prgec.compiler.options import CompileOptions
from prgec.core.contract.calls import Batch
from prgec.errors import UsageError
from prgec.lab.torch.program import TorchProgram
from tests.models import TinyLlama
from tests.tiny_program import write_reviews

MODEL = TinyLlama(num_layers=2, hidden_size=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounding")
    MODEL.write(folder / "checkpoint")
    write_reviews(folder / "rows.jsonl", 200, seed=1)
    return folder


def _program(folder: Path, **changes: Any) -> TorchProgram:
    options = CompileOptions(
        model=str(folder / "checkpoint"),
        output=Path("unused.pte"),
        method="exact",
        batch_size=8,
        rank=4,
        data=(folder / "rows.jsonl",),
        seq_len=0,
        num_labels=0,
        quantize="8da4w",
    )
    return TorchProgram.build(replace(options, **changes))


def _error(program: TorchProgram) -> float:
    """Mean squared difference of the log-likelihood of 64 tokens after a prompt from the unmodified model's."""
    tokens = torch.tensor([program.tokenizer.encode("a b c d e f g h")[:8]] * program.manifest.batch_size)
    label_pos = torch.full((len(tokens), 1), tokens.shape[1] - 1)
    with torch.no_grad():
        expected = MODEL.build()(input_ids=tokens[:1]).logits[0, -1].log_softmax(-1)
    squares = []
    for first in range(0, 64, len(tokens)):
        targets = torch.arange(first, first + len(tokens))[:, None]
        losses = program.evaluate(
            Batch(tokens.numpy(), _padded(label_pos, program, 0), _padded(targets, program, -100))
        )
        squares.append((np.asarray(losses) + expected[targets[:, 0]].numpy()) ** 2)
    return float(np.mean(squares))


def _padded(values: torch.Tensor, program: TorchProgram, fill: int) -> Any:
    unused = program.manifest.num_labels - values.shape[1]
    return torch.nn.functional.pad(values, (0, unused), value=fill).numpy()


def test_nearer_to_the_model(folder: Path) -> None:
    nearest, gptq = _program(folder, rounding="nearest"), _program(folder)
    assert "rounding=gptq" in gptq.manifest.pipeline and "rounding" not in nearest.manifest.pipeline
    assert _error(gptq) < 0.6 * _error(nearest)


def test_what_is_emitted_is_rounded_by_prompts_too(folder: Path) -> None:
    options = CompileOptions(
        model=str(folder / "checkpoint"),
        output=Path("unused.pte"),
        method="side",
        num_labels=1,
        data=(folder / "rows.jsonl",),
        seq_len=0,
        quantize="8da4w",
    )
    assert "rounding=gptq" in build_graphs(options).manifest.pipeline


def test_auto_is_for_four_bits_with_data() -> None:
    options = CompileOptions(model="m", quantize="8da4w")
    assert not options.rounds_by_prompts
    assert replace(options, data=("d",)).rounds_by_prompts
    assert not replace(options, data=("d",), quantize="8da8w").rounds_by_prompts
    assert replace(options, data=("d",), quantize="8da8w", rounding="gptq").rounds_by_prompts
    assert not replace(options, data=("d",), rounding="nearest").rounds_by_prompts


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--quantize", "8da4w"], "--rounding gptq needs prompts. Hint: name a file of them with --data"),
        ([], "--rounding gptq needs weights to round. Hint: add --quantize 8da8w or 8da4w or w8a16 or w4a16"),
    ],
)
def test_refuses_what_it_cannot_round(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    arguments = ["compile", str(folder / "checkpoint"), "--rounding", "gptq", *flags, "-o", str(tmp_path / "m.pte")]
    assert main(arguments) == UsageError.exit_code
    assert capsys.readouterr().err == f"error: {says}\n"

"""A small program of --method side, with rows to run through it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prgec.compiler.options import CompileOptions
from prgec.core.data.dataset import load_dataset
from prgec.core.data.first_tokens import FirstTokens, encode_dataset
from prgec.runtime.engines.executorch.emitting_program import EmittingProgram, open_emitting
from tests.architectures import SEQ_LEN
from tests.models import TinyLlama
from tests.shared import Shared

OPTIONS = CompileOptions(
    model="tiny", output=Path("tiny.pte"), method="side", batch_size=2, seq_len=SEQ_LEN, num_labels=1
)
SIDE_MODEL = TinyLlama(num_layers=2)


@pytest.fixture(scope="session")
def side_checkpoint(shared: Shared) -> Path:
    return shared.once("side-checkpoint", SIDE_MODEL.write)


@pytest.fixture(scope="session")
def side_pte(shared: Shared, side_checkpoint: Path) -> Path:
    return shared.program(replace(OPTIONS, model=str(side_checkpoint)))


@pytest.fixture(scope="session")
def side_backbone(side_pte: Path) -> EmittingProgram:
    return open_emitting(side_pte)


@pytest.fixture(scope="session")
def side_rows(side_backbone: EmittingProgram, train_jsonl: Path) -> FirstTokens:
    """64 labelled sentences."""
    return encode_dataset(load_dataset(train_jsonl), side_backbone.tokenizer, side_backbone.manifest)

"""The shortcut learns answers of several tokens and conversations, though it drops paths between positions.

Nothing is lowered here: the graph runs in PyTorch as it would be lowered.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prgec.compiler.options import CompileOptions
from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import encode_items
from prgec.lab.torch.program import TorchProgram
from prgec.runtime.training.gradient_trainer import GradientTrainer
from prgec.runtime.training.loop import TrainingLoop
from prgec.runtime.training.schedules import Rates
from tests.models import TinyLlama

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
ANSWERS = {"great": "a lovely film and a bright plot", "boring": "terrible acting in an awful movie"}
STEPS = 40


def _chat(word: str, filler: str) -> dict[str, Any]:
    asked = f"the {filler} was {word}"
    turns = [("user", asked), ("assistant", ANSWERS[word]), ("user", "and"), ("assistant", f"it is {word}")]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def _completion(word: str, filler: str) -> dict[str, Any]:
    # Too many different answers to be a choice.
    return {"prompt": f"the {filler} was {word}", "completion": f" {ANSWERS[word]} {filler}"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = TinyLlama(num_layers=2, max_positions=128).write(tmp_path_factory.mktemp("text") / "checkpoint")
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("record", [_chat, _completion])
def test_learns_what_has_many_labels(
    checkpoint: Path, record: Callable[[str, str], dict[str, Any]], tmp_path: Path
) -> None:
    """The loss falls by two fifths, and what the layers below the last block learn is part of it."""
    rng = random.Random(0)
    fillers = [" ".join(rng.choices("film movie plot acting it and of in".split(), k=3)) for _ in range(24)]
    data = tmp_path / "rows.jsonl"
    records = [record(rng.choice(list(ANSWERS)), filler) for filler in fillers]
    data.write_text("".join(json.dumps(each) + "\n" for each in records))
    options = CompileOptions(
        model=str(checkpoint),
        output=Path("unused.pte"),
        backend="portable",
        method="shortcut",
        batch_size=8,
        seq_len=0,
        num_labels=0,
        data=(data,),
    )
    program = TorchProgram.build(options)
    rows = encode_items(load_dataset(data).examples, program.tokenizer, program.manifest)
    assert min(len(row.targets) for row in rows) > 4
    trainer = GradientTrainer(program)
    loop = TrainingLoop(
        trainer=trainer, rows=rows, manifest=program.manifest, seed=0, rates=Rates(STEPS, 0.01, "linear")
    )
    losses = [result.loss for result in loop]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    moved = {name: float(abs(value).mean()) for name, value in program.read_state().items()}
    below = [value for name, value in moved.items() if ".layers.0." in name]
    assert len(below) == 2 and min(below) > 0.1 * max(moved.values())

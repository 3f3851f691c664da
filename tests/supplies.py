"""Files that a page supposes its reader to have, under the names that it gives them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from prgec.demo import checkpoint_dir

_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_REWARD = "def reward(prompt, answer, record):\n    return float(len(answer) > 3)\n"
_DATA = checkpoint_dir().parent / "data"


def _model(path: Path) -> None:
    """Write the bundled model as a checkpoint that knows how to chat and reads long rows."""
    shutil.copytree(checkpoint_dir(), path)
    for name, change in (
        ("tokenizer_config.json", {"chat_template": _TEMPLATE}),
        ("config.json", {"max_position_embeddings": 2048}),
    ):
        file = path / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))


def _rows(split: str, count: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text("".join((_DATA / f"{split}.jsonl").open().readlines()[:count]))

    return write


def _lines(rows: Iterable[Mapping[str, Any]]) -> Callable[[Path], None]:
    return _text("".join(json.dumps(row) + "\n" for row in rows))


def _text(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(text)

    return write


def _tsv(path: Path) -> None:
    rows = [json.loads(line) for line in (_DATA / "train.jsonl").open().readlines()[:32]]
    path.write_text("sentence\tlabel\n" + "".join(f"{row['sentence']}\t{row['label']}\n" for row in rows))


def _gguf(path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from tests.gguf_model import add_sentencepiece, write_gguf

    pieces = (checkpoint_dir() / "tokenizer.model").read_bytes()
    model = AutoModelForCausalLM.from_pretrained(checkpoint_dir())
    write_gguf(path, model, lambda writer: add_sentencepiece(writer, pieces))


def _peft(path: Path) -> None:
    """Write an adapter of PEFT with an A of its own."""
    code = (
        "import sys, peft, transformers\n"
        "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "config = peft.LoraConfig(r=4, target_modules=['q_proj', 'v_proj'])\n"
        "peft.get_peft_model(model, config).save_pretrained(sys.argv[2])\n"
    )
    subprocess.run([sys.executable, "-c", code, checkpoint_dir(), path], check=True, capture_output=True)


_PAIRS = [
    {"prompt": f"The {noun} is", "chosen": " warm and lovely.", "rejected": " dreary."}
    for noun in ("room", "host", "bed", "sauce", "lamp", "day", "food", "view")
]
_ANSWERED = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in _PAIRS]
_CHATS = [
    {"messages": [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["chosen"].strip()}]}
    for row in _PAIRS
]
_SUPPLIES: dict[str, Callable[[Path], None]] = {
    "train.jsonl": _rows("train", 32),
    "dev.jsonl": _rows("dev", 16),
    "test.jsonl": _rows("test", 16),
    "mine.jsonl": _rows("train", 16),
    "SST-2/train.tsv": _tsv,
    "pairs.jsonl": _lines(_PAIRS),
    "test-pairs.jsonl": _lines(_PAIRS[:4]),
    "held-out.jsonl": _lines(_ANSWERED[:4]),
    "prompts.jsonl": _lines(_ANSWERED),
    "thumbs.jsonl": _lines({**row, "label": index % 2 == 0} for index, row in enumerate(_ANSWERED)),
    "chats.jsonl": _lines(_CHATS),
    "reward.py": _text(_REWARD),
    "program.toml": _text('model = "path/to/checkpoint"\n'),
    "run.toml": _text('program = "model.pte"\n\n[data]\ndata = "train.jsonl"\n\n[training]\nsteps = 4\n'),
    "model.gguf": _gguf,
    "their-adapter": _peft,
}


def supply(folder: Path, names: Iterable[str]) -> None:
    """Write the files and models of these names; a name without an entry above is a checkpoint's."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _SUPPLIES.get(name, _model)(path)

"""A trained program gives back what it learned: answers that end by themselves, of completions and a Qwen 3 chat."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from prgec.cli.main import main
from tests.chat_tokenizer import byte_tokenizer
from tests.models import TinyLlama
from tests.shared import Shared

pytestmark = pytest.mark.slow

TEMPLATE = Path(__file__).resolve().parents[1] / "templates" / "qwen-3.jinja"
CHAT = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "And 3 + 3?"},
    {"role": "assistant", "content": "6, then."},
]
PAIR = {"prompt": "The capital of France is", "completion": " Paris."}


@pytest.fixture(scope="module")
def checkpoint(shared: Shared) -> Path:
    return shared.once("bytes-qwen-3", _write)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """A folder with a compiled program, a file of one chat and one of one completion."""
    folder = tmp_path_factory.mktemp("ends")
    (folder / "chat.jsonl").write_text(json.dumps({"messages": CHAT}))
    (folder / "pair.jsonl").write_text(json.dumps(PAIR))
    sizes = ["--method", "exact", "--batch-size", 2, "--generate", "--context", 160, "--rank", 16]
    data = ["--data", folder / "chat.jsonl", "--data", folder / "pair.jsonl"]
    assert _main("compile", checkpoint, *data, *sizes, "-o", folder / "m.pte") == 0
    return folder


def _write(folder: Path) -> None:
    """A random Llama over bytes, with the template of Qwen 3."""
    tokenizer = byte_tokenizer(TEMPLATE.read_text())
    TinyLlama(num_layers=2, hidden_size=64, max_positions=256).write(folder, tokenizer="none")
    (folder / "tokenizer.json").write_text(tokenizer.backend.to_str())
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": tokenizer.chat_template}))


def _main(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def _train(work: Path, name: str, *options: object) -> Path:
    out = work / f"{name}{len(options)}"
    steps = ["--steps", 150, "--lr", 0.02]
    assert _main("run", work / "m.pte", "--data", work / f"{name}.jsonl", *steps, "--out", out, *options) == 0
    return out / "adapter.safetensors"


def _predict(work: Path, adapter: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    asked = ["--data", work / "pair.jsonl", "--generate", 30, "--adapter", adapter, "--json"]
    assert _main("predict", work / "m.pte", *asked) == 0
    (row,) = json.loads(capsys.readouterr().out)["predictions"]
    return str(row["completion"])


def test_a_completion_ends_by_itself(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _predict(work, _train(work, "pair"), capsys) == "Paris."
    # Nothing ends what was learned without its end.
    endless = _predict(work, _train(work, "pair", "--no-eos"), capsys)
    assert endless.startswith("Paris.") and len(endless) > len("Paris.")


def test_a_chat_of_qwen_3_comes_back(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = _train(work, "chat")
    said = capsys.readouterr().err
    assert "1 conversations became 2 rows, one for each turn of the assistant" in said
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{CHAT[0]['content']}\n{CHAT[2]['content']}\n"))
    assert _main("chat", work / "m.pte", "--adapter", adapter, "--max-tokens", 30) == 0
    assert capsys.readouterr().out.splitlines() == ["It is 4.", "6, then."]

"""The commands of README and the how-to pages, in order, with the files that the pages suppose, under their names.

The checkpoint is the bundled model under whatever name a page gives its own, so that a page takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pages import run, shell_lines
from tests.supplies import supply

ROOT = Path(__file__).resolve().parents[2]
# Options of commands that would take long, where a page gives none.
_SHORTER = {"prgec run": "--steps 4", "prgec federate simulate": "--rounds 2"}
_COMPILED = "prgec compile path/to/checkpoint --data train.jsonl -o model.pte"
_CHECKPOINT = "path/to/checkpoint"


def _shorter(line: str) -> str:
    for start, options in _SHORTER.items():
        if options.split()[0] not in line:
            line = line.replace(f"{start} ", f"{start} {options} ")
    return line


@dataclass(frozen=True, kw_only=True)
class _Page:
    """A page and its reader.

    Attributes:
        has: Files and checkpoints that the reader has.
        before: Commands of other pages that come first.
        elsewhere: Beginnings of commands that need what is not here, or do not end; other tests try them.
        typed: Lines that the reader types into commands that listen.
        seen: Texts that the commands print.
        needs: Packages without which the page cannot be tried.
    """

    has: tuple[str, ...]
    before: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    typed: str = ""
    seen: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


_RUN = "prgec run model.pte --data train.jsonl --steps 4 --out runs/first"
_PAGES = {
    "README": _Page(
        has=("smollm2-135m", "train.jsonl", "dev.jsonl", _CHECKPOINT), seen=("accuracy", "rows.bin  32 examples")
    ),
    "accumulation": _Page(has=(_CHECKPOINT, "train.jsonl")),
    "adapters": _Page(has=(_CHECKPOINT, "train.jsonl", "their-adapter"), before=(_COMPILED, _RUN)),
    "cache": _Page(has=()),
    "chat": _Page(has=("HuggingFaceTB/SmolLM2-135M-Instruct", "chats.jsonl"), typed="Hello\n"),
    "checkpoints": _Page(has=("CHECKPOINT",)),
    "config": _Page(has=(_CHECKPOINT, "program.toml", "run.toml", "train.jsonl", "test.jsonl")),
    "data": _Page(has=(_CHECKPOINT, "train.jsonl", "SST-2/train.tsv", "tinyllama")),
    "feedback": _Page(
        has=(
            "smollm2",
            "pairs.jsonl",
            "test-pairs.jsonl",
            "held-out.jsonl",
            "thumbs.jsonl",
            "prompts.jsonl",
            "reward.py",
        ),
        typed="Hello\n",
    ),
    "federation": _Page(
        has=(_CHECKPOINT, "train.jsonl", "test.jsonl"),
        before=(f"{_COMPILED} --method prge",),
        elsewhere=("prgec federate serve", "prgec federate join", "prgec federate app"),
    ),
    "gguf": _Page(has=("model.gguf",), needs=("gguf",)),
    "lower-only": _Page(has=("tinyllama", "one"), needs=("coremltools",)),
    "openvino": _Page(has=("tinyllama", "train.jsonl"), needs=("openvino",)),
    "plan": _Page(has=()),
    "privacy": _Page(
        has=(_CHECKPOINT, "train.jsonl", "test.jsonl"),
        elsewhere=("prgec federate join",),
        seen=("private: epsilon 8 at delta 1e-05",),
    ),
    "quantization": _Page(has=("model", "train.jsonl")),
    "side": _Page(
        has=(_CHECKPOINT, "train.jsonl", "test.jsonl"),
        elsewhere=("prgec side serve", "prgec side push", "prgec side pull", "prgec side forget"),
    ),
    "tasks": _Page(has=(_CHECKPOINT, "train.jsonl", "dev.jsonl")),
    "trackers": _Page(
        has=(_CHECKPOINT, "train.jsonl"),
        before=(_COMPILED,),
        elsewhere=(_shorter("prgec run model.pte --data train.jsonl --log-to mlflow"),),
        needs=("tensorboard",),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _PAGES)
def test_commands_run_in_order(name: str, tmp_path: Path) -> None:
    page = _PAGES[name]
    for package in page.needs:
        pytest.importorskip(package)
    supply(tmp_path, page.has)
    path = ROOT / "README.md" if name == "README" else ROOT / "docs" / f"{name}.md"
    lines = [_shorter(line.removeprefix("$ ")) for _, line in shell_lines(path.read_text(encoding="utf-8"))]
    tried = [line for line in lines if not line.startswith(page.elsewhere or "-")]
    assert tried
    said = "".join(
        run(["bash", "-eu", "-o", "pipefail", "-c", line], tmp_path, page.typed) for line in (*page.before, *tried)
    )
    for seen in page.seen:
        assert seen in said

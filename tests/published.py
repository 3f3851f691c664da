"""Sample files in the layouts their data sets are published in; every sentence in them is generated."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NAMES = ("Ada", "Ben", "Cleo", "Dan")
_THINGS = ("the lamp", "the boat", "the cake", "the drum")
_STATES = ("red", "old", "loud", "warm")


def _sentence(rng: random.Random) -> str:
    return f"{rng.choice(_NAMES)} says {rng.choice(_THINGS)} is {rng.choice(_STATES)}."


def _tsv(header: str, row: Callable[[int, random.Random], list[Any]]) -> Callable[[Path, int], None]:
    def write(path: Path, count: int) -> None:
        rng = random.Random(0)
        lines = ["\t".join(map(str, row(i, rng))) for i in range(count)]
        path.write_bytes(
            (
                "\ufeff" * (path.name == "msr_paraphrase_train.txt")
                + "\r\n".join([header.replace("|", "\t"), *lines])
                + "\r\n"
            ).encode()
        )

    return write


def _jsonl(row: Callable[[int, random.Random], dict[str, Any]]) -> Callable[[Path, int], None]:
    def write(path: Path, count: int) -> None:
        rng = random.Random(0)
        path.write_text("".join(json.dumps(row(i, rng)) + "\n" for i in range(count)))

    return write


def _multirc(i: int, rng: random.Random) -> dict[str, Any]:
    answers = [{"text": f"{state}", "idx": n, "label": n % 2} for n, state in enumerate(_STATES[:2])]
    questions = [{"question": f"What is {rng.choice(_THINGS)}?", "sentences_used": [0], "answers": answers, "idx": 0}]
    return {"idx": i, "version": 1.1, "passage": {"text": f"<b>Sent 1: </b>{_sentence(rng)}", "questions": questions}}


def _wsc(i: int, rng: random.Random) -> dict[str, Any]:
    target = {"span1_index": 0, "span1_text": "Ada", "span2_index": 4, "span2_text": "She"}
    return {"text": f"Ada left. She took {rng.choice(_THINGS)}.", "target": target, "idx": i, "label": bool(i % 2)}


def _squad(path: Path, count: int) -> None:
    rng = random.Random(0)
    data = []
    for i in range(count):
        thing, state = rng.choice(_THINGS), rng.choice(_STATES)
        context = f"They say {thing} is {state}."
        question = {
            "question": f"How is {thing}?",
            "id": str(i),
            "answers": [{"answer_start": context.index(state), "text": state}],
        }
        data.append({"title": "Things", "paragraphs": [{"context": context, "qas": [question]}]})
    path.write_text(json.dumps({"version": "1.1", "data": data}))


_ENTAILMENT = ("entailment", "not_entailment")
# Folder and file as published -> writer of (path, number of rows).
SAMPLES: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "sst2": ("SST-2/train.tsv", _tsv("sentence|label", lambda i, r: [f'{_sentence(r)} " so good ', i % 2])),
    "rte": (
        "RTE/train.tsv",
        _tsv("index|sentence1|sentence2|label", lambda i, r: [i, _sentence(r), _sentence(r), _ENTAILMENT[i % 2]]),
    ),
    "mrpc": (
        "MRPC/msr_paraphrase_train.txt",
        _tsv(
            "Quality|#1 ID|#2 ID|#1 String|#2 String",
            lambda i, r: [i % 2, 100 + i, 200 + i, _sentence(r), _sentence(r)],
        ),
    ),
    "qqp": (
        "QQP/train.tsv",
        _tsv(
            "id|qid1|qid2|question1|question2|is_duplicate",
            lambda i, r: [i, i, i + 1, f"Who has {r.choice(_THINGS)}?", f"Who took {r.choice(_THINGS)}?", i % 2],
        ),
    ),
    "qnli": (
        "QNLI/train.tsv",
        _tsv(
            "index|question|sentence|label",
            lambda i, r: [i, f"Who has {r.choice(_THINGS)}?", _sentence(r), _ENTAILMENT[i % 2]],
        ),
    ),
    "wnli": (
        "WNLI/train.tsv",
        _tsv("index|sentence1|sentence2|label", lambda i, r: [i, _sentence(r), _sentence(r), i % 2]),
    ),
    "boolq": (
        "BoolQ/train.jsonl",
        _jsonl(
            lambda i, r: {
                "question": f"is {r.choice(_THINGS)} {r.choice(_STATES)}",
                "passage": _sentence(r),
                "idx": i,
                "label": bool(i % 2),
            }
        ),
    ),
    "wsc": ("WSC/train.jsonl", _jsonl(_wsc)),
    "wic": (
        "WiC/train.jsonl",
        _jsonl(
            lambda i, r: {
                "word": "light",
                "sentence1": f"A light lamp. {_sentence(r)}",
                "sentence2": "The light is on.",
                "idx": i,
                "label": bool(i % 2),
                "start1": 2,
                "start2": 4,
                "end1": 7,
                "end2": 9,
                "version": 1.1,
            }
        ),
    ),
    "multirc": ("MultiRC/train.jsonl", _jsonl(_multirc)),
    "copa": (
        "COPA/train.jsonl",
        _jsonl(
            lambda i, r: {
                "premise": _sentence(r),
                "choice1": f"{r.choice(_NAMES)} was glad.",
                "choice2": "I was tired of it.",
                "question": ("cause", "effect")[i % 2],
                "label": i % 2,
                "idx": i,
            }
        ),
    ),
    "winogrande": (
        "winogrande/train_s.jsonl",
        _jsonl(
            lambda i, r: {
                "qID": f"Q{i}",
                "sentence": f"Ada met Ben because _ wanted {r.choice(_THINGS)}.",
                "option1": "Ada",
                "option2": "Ben",
                "answer": str(i % 2 + 1),
            }
        ),
    ),
    "squad": ("SQuAD/train-v1.1.json", _squad),
}


def write_sample(folder: Path, task: str, count: int = 8) -> Path:
    """Write one data set's sample under its published folder and name."""
    name, write = SAMPLES[task]
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, count)
    return path

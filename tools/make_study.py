"""Generate what studies/*.toml read: the data of five tasks, and base models of two sizes.

    python tools/make_study.py                 # everything, into studies/build (about 20 minutes on one core)
    python tools/make_study.py --size small    # the data and the small model only

Nothing is downloaded. The docstrings come from the Python that runs this.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from demo.corpus import Verdict, documents
from demo.reviews import review_rows
from study.docstrings import docstring_rows, docstring_texts
from study.generated import GENERATED, Row

SEED = 9
SPLIT_ROWS = {"train": 1000, "dev": 200, "test": 400}
# Documents of pretraining by task; docstrings come as often as there are any, this many times.
DOCUMENTS = {"sentiment": 24_000, "pairs": 16_000, "passages": 14_000, "choices": 8_000}
DOCSTRING_EPOCHS = 2
VOCAB_SIZE = 2048
DEFAULT_FOLDER = Path(__file__).resolve().parent.parent / "studies" / "build"
# Width, layers, width of the MLP, heads, key/value heads.
SIZES = {"small": (64, 2, 176, 4, 2), "base": (96, 3, 256, 4, 2)}


def main() -> None:
    """Parse the command line and write what it asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=DEFAULT_FOLDER, help="folder to write")
    parser.add_argument("--data-only", action="store_true", help="write the tasks and stop")
    parser.add_argument("--size", choices=SIZES, action="append", help="pretrain this size (repeatable); both without")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the pretraining text")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of the pretraining")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    held_out = write_tasks(options.out)
    write_glue(options.out / "glue")
    if not options.data_only:
        texts = pretraining_texts(held_out)
        for size in options.size or SIZES:
            write_model(options.out / size, size, texts, options.epochs, options.threads)


def write_tasks(folder: Path) -> set[str]:
    """Write <task>/<split>.jsonl; return the docstrings pretraining must not see."""
    docstrings = docstring_rows(SEED)
    for task in ("sentiment", *GENERATED, "docstrings"):
        for split, size in SPLIT_ROWS.items():
            rows = docstrings[split] if task == "docstrings" else task_rows(task, split, size)
            write_rows(
                folder / task / f"{split}.jsonl",
                [{"prompt": prompt, "completion": answer} for prompt, answer in rows[:size]],
            )
    return {prompt.removesuffix(" This is about") for split in ("dev", "test") for prompt, _ in docstrings[split]}


def write_glue(folder: Path) -> None:
    """Write two of the tasks once more in the fields of GLUE's sst2 and rte, which the papers' tables are over."""
    for split, size in SPLIT_ROWS.items():
        reviews = review_rows(split, SEED)[:size]
        write_rows(folder / "sst2" / f"{split}.jsonl", [{"sentence": text, "label": label} for text, label in reviews])
        pairs = task_rows("pairs", split, size)
        write_rows(folder / "rte" / f"{split}.jsonl", [_entailment(prompt, answer) for prompt, answer in pairs])


def _entailment(prompt: str, answer: str) -> dict[str, str | int]:
    first, second = prompt.removesuffix("? Answer:").split(" Does it follow that ")
    return {"sentence1": first, "sentence2": f"{second}.", "label": int(answer != " Yes")}


def write_rows(path: Path, rows: Sequence[Mapping[str, str | int]]) -> None:
    """Write one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii", newline="\n")


def task_rows(task: str, split: str, size: int) -> list[Row]:
    """Distinct rows of a generated task."""
    if task == "sentiment":
        return [(f"{text} It was", (" terrible", " great")[label]) for text, label in review_rows(split, SEED)[:size]]
    rng = random.Random(f"{task}/{split}/{SEED}")
    make_row, _ = GENERATED[task]
    rows: dict[str, str] = {}
    for _ in range(100 * size):
        prompt, answer = make_row(split, rng)
        rows[prompt] = answer
        if len(rows) == size:
            break
    return list(rows.items())


def pretraining_texts(held_out: set[str]) -> list[str]:
    """Documents the tokenizer and the models are trained on."""
    texts = documents(DOCUMENTS["sentiment"], SEED, Verdict())
    for task, (_, make_text) in GENERATED.items():
        rng = random.Random(f"{task}/pretraining/{SEED}")
        texts += [make_text(rng) for _ in range(DOCUMENTS[task])]
    rng = random.Random(f"docstrings/pretraining/{SEED}")
    for text in docstring_texts(held_out) * DOCSTRING_EPOCHS:
        about = rng.choice((" network", " text", " text")) if rng.random() < 0.3 else ""
        texts.append(f"{text} This is about{about}." if about else text)
    random.Random(SEED).shuffle(texts)
    return texts


def write_model(folder: Path, size: str, texts: list[str], epochs: int, threads: int) -> None:
    """Train the tokenizer and pretrain a model of one size."""
    # torch and transformers take seconds to import and --data-only needs neither.
    import torch
    from demo.pretrain import Pretraining, pretrain
    from demo.tokenizer import train_tokenizer
    from transformers import LlamaConfig

    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    train_tokenizer(texts, folder, VOCAB_SIZE)
    width, layers, mlp, heads, kv_heads = SIZES[size]
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )
    loss = pretrain(texts, folder, Pretraining(epochs=epochs), config)
    logging.info("wrote %s, final loss %.3f nats a token", folder, loss)


if __name__ == "__main__":
    main()

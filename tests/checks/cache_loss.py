"""Losses of a data file's answers where programs read them token by token: `python tools/cache_loss.py --help`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import Row, encode_items
from prgec.core.formats.adapter import load_adapter
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.training.reader import Reader


def losses(program: PteProgram, rows: list[Row]) -> NDArray[np.float64]:
    """Loss of each label token after the earlier tokens in the cache, f64[labels of all rows]."""
    reader, found = Reader(program), []
    for row in rows:
        targets = dict(zip(row.label_pos, row.targets, strict=True))
        first = row.label_pos[0]
        reader.forget()
        reader.read(row.tokens[:first])
        for place in range(first, row.label_pos[-1] + 1):
            logits_V = reader.read(row.tokens[: place + 1]).astype(np.float64).ravel()
            if place in targets:
                most = logits_V.max()
                found.append(most + np.log(np.exp(logits_V - most).sum()) - logits_V[targets[place]])
    return np.array(found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="cache_loss.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", nargs="+", type=Path, help="of one model; the others part from the first")
    parser.add_argument("--data", type=Path, required=True, help="file with answers")
    parser.add_argument("--adapter", type=Path, help="adapter that all of them get")
    options = parser.parse_args()
    print("| program | tokens | mean loss | mean difference of a token | largest |\n|---|---:|---:|---:|---:|")
    first = None
    for path in options.programs:
        program = open_pte(path)
        if options.adapter is not None:
            load_adapter(options.adapter, program)
        rows = encode_items(load_dataset(options.data).examples, program.tokenizer, program.manifest)
        found = losses(program, rows)
        first = found if first is None else first
        parts = np.abs(found - first)
        print(f"| {path.name} | {len(found)} | {found.mean():.4f} | {parts.mean():.4f} | {parts.max():.4f} |")


if __name__ == "__main__":
    main()

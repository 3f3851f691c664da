"""Measure what quantising the frozen weights does to g, on the bundled demo model.

    python tools/quantization.py [--steps 200]
    python tools/quantization.py --backend qnn --steps 40      # the HTP simulator takes seconds a step

The same steps (rows, noise, zero state) run on a program with f32 weights and on others; printed is how the projected
gradients of each agree with those of f32 on XNNPACK, as a Markdown table.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prgec.core.machine.quiet import quiet_libraries

SCHEMES: dict[str, dict[str, dict[str, Any]]] = {
    "xnnpack": {
        "8da8w": {"quantize": "8da8w", "quantize_embedding": 8},
        "8da4w": {"quantize": "8da4w", "quantize_embedding": 4},
    },
    "qnn": {"f16": {}, "w8a16": {"quantize": "w8a16"}, "w4a16": {"quantize": "w4a16"}},
}
EPS = 1e-2
SEQ_LEN = 64


def main() -> None:
    """Compile the programs, run the steps, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps to compare")
    parser.add_argument("--backend", choices=SCHEMES, default="xnnpack", help="what runs the others")
    parser.add_argument("--batch-size", type=int, default=4, help="B, examples a step")
    chosen = parser.parse_args()
    quiet_libraries()
    base = {"seq_len": SEQ_LEN, "batch_size": chosen.batch_size}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = projected_gradients(folder / "f32.pte", chosen.steps, base)
        print("| weights | sign agreement | of the larger half | correlation | spread |")
        print("|---|---:|---:|---:|---:|")
        for scheme, changes in SCHEMES[chosen.backend].items():
            g = projected_gradients(folder / f"{scheme}.pte", chosen.steps, base | changes, chosen.backend)
            print(row(scheme, g, reference), flush=True)


def projected_gradients(
    output: Path, steps: int, compile_options: dict[str, Any], backend: str = "xnnpack"
) -> npt.NDArray[np.float64]:
    """Return g of every step and query at zero state: f64[steps * q]."""
    from prgec.compiler.compile import compile_model
    from prgec.compiler.options import CompileOptions
    from prgec.core.contract.calls import StepInputs
    from prgec.core.data.batches import step_batch
    from prgec.core.data.dataset import load_dataset
    from prgec.core.data.encode import encode_rows
    from prgec.demo import data_file
    from prgec.runtime.engines.executorch.open import open_pte

    options = CompileOptions(model="demo", output=output, backend=backend, **compile_options)
    program = open_pte(compile_model(options).path)
    m = program.manifest
    pairs = [(each, str(each.completion)) for each in load_dataset(data_file("train")).examples]
    rows = encode_rows(pairs, program.tokenizer, m)
    no_update, found = np.zeros(m.q, dtype=np.float32), []
    for step in range(1, steps + 1):
        batch = step_batch(rows, 0, step, m)
        loss_N = program.forward(batch, StepInputs(g_q=no_update, lr=0.0, eps=EPS, seed=0, step=step))
        pair_Q2 = loss_N.astype(np.float64).reshape(m.q, 2, m.batch_size).mean(axis=2)
        found.append((pair_Q2[:, 0] - pair_Q2[:, 1]) / (2 * EPS))
    return np.concatenate(found)


def row(scheme: str, g: npt.NDArray[np.float64], reference: npt.NDArray[np.float64]) -> str:
    """Return one row of the table."""
    agrees = np.sign(g) == np.sign(reference)
    large = np.abs(reference) > np.median(np.abs(reference))
    correlation, spread = np.corrcoef(g, reference)[0, 1], g.std() / reference.std()
    return f"| {scheme} | {agrees.mean():.1%} | {agrees[large].mean():.1%} | {correlation:.3f} | {spread:.2f} |"


if __name__ == "__main__":
    main()

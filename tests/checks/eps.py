"""Measure how far a two-sided difference of losses is from the slope it stands for, by eps, backend and bits.

    python tools/eps.py [--json]                         # the bundled model and a random one (minutes)
    python tools/eps.py --model path/to/checkpoint       # other models

A program of `--method prge` computes its losses under noise of several sizes. The expected g is the product of that
noise with the gradient that PyTorch's autograd finds on the unmodified Hugging Face model, with LoRA-FA as hooks; where
the program rounds its frozen weights, on that model with these weights. A number of the table is the root mean square
of the difference over all draws, as a share of that of the slopes: 0 % is a perfect g, 100 % none at all. At `start` B
is zero; `trained` is after some steps along the gradient.

The exit code is 1 where g is off by more than half at the default eps.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prgec.core.contract.calls import Batch, StepInputs
from prgec.core.machine.quiet import quiet_libraries
from prgec.runtime.runs.options import RunOptions

if TYPE_CHECKING:
    import torch

    from prgec.core.contract.engine import TrainableProgram

EPS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)
BITS = ("none", "8da8w", "8da4w")
BACKENDS = {"xnnpack": BITS, "portable": ("none",)}
DEMO, RANDOM = "demo", "random"
SEED, STEPS, LR = 5, 10, 3e-3
WORST = 0.5


@dataclass(frozen=True)
class Row:
    """Errors of one program in one state.

    Attributes:
        model: Checkpoint.
        backend: Backend that runs it.
        quantize: Bits of the frozen weights.
        state: `start` or `trained`.
        slope: Root mean square of the slopes.
        errors: By eps, relative to `slope`.
    """

    model: str
    backend: str
    quantize: str
    state: str
    slope: float
    errors: Mapping[float, float]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every program; return the exit code."""
    options = _parse(argv)
    quiet_libraries()
    import torch

    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in options.model or [DEMO, RANDOM]:
            for backend, schemes in BACKENDS.items():
                for quantize in schemes if backend in options.backend else ():
                    print(f"{model} {backend} {quantize} ...", file=sys.stderr, flush=True)
                    rows += measure(model, backend, quantize, Path(folder), draws=options.draws)
    print(json.dumps([asdict(row) for row in rows], indent=2) if options.json else markdown(rows))
    return 0 if all(row.errors[RunOptions.eps] < WORST for row in rows) else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help=f"checkpoint (repeatable; default: {DEMO} and {RANDOM})")
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="repeatable (default: xnnpack)")
    parser.add_argument("--draws", type=int, default=8, help="calls of four directions each (default: 8)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a Markdown table")
    options = parser.parse_args(argv)
    if options.draws < 1:
        parser.error("--draws is at least 1")
    options.backend = options.backend or ["xnnpack"]
    return options


def measure(model: str, backend: str, quantize: str, folder: Path, *, draws: int) -> Iterator[Row]:
    """Compile one program, and compare it with autograd in both states."""
    from prgec.compiler.compile import compile_model
    from prgec.compiler.options import CompileOptions
    from prgec.runtime.engines.executorch.open import open_pte
    from tests.models import TinyLlama
    from tests.tiny_program import write_reviews

    data = write_reviews(folder / "rows.jsonl", 64, seed=1)
    checkpoint = model
    if model == RANDOM:
        checkpoint = str(TinyLlama(num_layers=4, hidden_size=128).write(folder / "random"))
    options = CompileOptions(
        model=checkpoint,
        output=folder / "model.pte",
        method="prge",
        backend=backend,
        quantize=quantize,
        batch_size=2,
        seq_len=0,
        num_labels=0,
        data=(data,),
    )
    compile_model(options)
    program = open_pte(options.output)
    oracle = Oracle(checkpoint, program, quantize)
    batches = _batches(program, data, draws)
    for state in ("start", "trained"):
        if state == "trained":
            oracle.train([rows for rows, _ in batches])
            program.write_state(oracle.state())
        slopes = np.concatenate([oracle.slopes(rows, step) for step, (rows, _) in enumerate(batches, 1)])
        size = float(np.sqrt(np.mean(slopes**2)))
        errors = {}
        for eps in EPS:
            found = [_measured(program, batch, eps, step) for step, (_, batch) in enumerate(batches, 1)]
            errors[eps] = float(np.sqrt(np.mean((np.concatenate(found) - slopes) ** 2))) / size
        yield Row(Path(model).name, backend, quantize, state, size, errors)


class Oracle:
    """The unmodified model, its weights rounded as the program's are, with LoRA-FA as hooks.

    Args:
        checkpoint: The model.
        program: Program with the sites, rank, alpha and A.
        quantize: How the program rounds frozen weights.
    """

    def __init__(self, checkpoint: str, program: TrainableProgram, quantize: str) -> None:
        import torch

        from prgec.compiler.frontend.checkpoint import find_checkpoint
        from prgec.compiler.frontend.model import load_model
        from tests.autograd import LoraFa

        m = self._manifest = program.manifest
        model = load_model(find_checkpoint(checkpoint))
        if quantize != "none":
            _round(model, quantize)
        zeros = {site.name: torch.zeros(m.rank, site.out_features) for site in m.sites}
        self._model = LoraFa(model, zeros, alpha=m.alpha, a_seed=m.a_seed)

    def train(self, batches: Sequence[Sequence[torch.Tensor]]) -> None:
        """Take some steps of one length along the gradient."""
        import torch

        for number in range(STEPS):
            found = self._model.gradients(batches[number % len(batches)])
            rms = torch.cat([each.flatten() for each in found.values()]).square().mean().sqrt()
            for name, gradient in found.items():
                self._model.leaves[name].data -= LR * gradient / rms

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """The trained B, by the names of the program's state."""
        return {site.state_name: self._model.leaves[site.name].detach().numpy() for site in self._manifest.sites}

    def slopes(self, rows: Sequence[torch.Tensor], step: int) -> np.ndarray[Any, Any]:
        """Products of the gradient with the noise of a step, f64[q]."""
        import torch

        from prgec.runtime_ops.reference import randn

        gradients = self._model.gradients(rows)
        total = np.zeros(self._manifest.q)
        for site in self._manifest.sites:
            gradient = gradients[site.name].double()
            z_qRO = randn(torch.tensor(SEED), torch.tensor(step), site.index, self._manifest.q, list(gradient.shape))
            total += (z_qRO.double() * gradient).sum((1, 2)).numpy()
        return total


def _round(model: torch.nn.Module, quantize: str) -> None:
    """Give every linear layer the weights that a program has."""
    import torch

    from prgec.passes.weights import SCHEMES, quantized

    scheme, group = SCHEMES[quantize], 32
    for module in model.modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        width = module.weight.shape[1]
        if scheme.is_grouped and width % group:
            continue
        values, scale, _ = quantized(module.weight, scheme, [1, group if scheme.is_grouped else width])
        repeated = scale.reshape(len(values), -1).repeat_interleave(group if scheme.is_grouped else width, 1)
        # A head may share its tensor with the embedding, which keeps what it has.
        module.weight = torch.nn.Parameter(values.float() * repeated, requires_grad=False)


def _batches(program: TrainableProgram, data: Path, draws: int) -> list[tuple[list[torch.Tensor], Any]]:
    """Rows of each call, for the oracle and for the program."""
    import torch

    from prgec.core.data.batches import step_batch
    from prgec.core.data.dataset import load_dataset
    from prgec.core.data.encode import encode_items

    m = program.manifest
    rows = encode_items(load_dataset(data).examples, program.tokenizer, m)
    found = []
    for step in range(1, draws + 1):
        batch = step_batch(rows, SEED, step, m)
        arrays = (batch.tokens_NT, batch.label_pos_NK, batch.targets_NK)
        found.append(([torch.from_numpy(each[: m.batch_size]) for each in arrays], arrays))
    return found


def _measured(program: TrainableProgram, batch: Any, eps: float, step: int) -> np.ndarray[Any, Any]:
    """The paper's g of a step, f64[q]."""
    m = program.manifest
    inputs = StepInputs(g_q=np.zeros(m.q, dtype=np.float32), lr=0.0, eps=eps, seed=SEED, step=step)
    loss_N = program.forward(Batch(*batch), inputs)
    means = loss_N.astype(np.float64).reshape(m.q, 2, m.batch_size).mean(2)
    g: np.ndarray[Any, Any] = (means[:, 0] - means[:, 1]) / (2 * eps)
    return g


def markdown(rows: Sequence[Row]) -> str:
    """One line a program and state; the lowest error of each in bold."""
    lines = [
        f"| model | backend | weights | B | slope | {' | '.join(f'{eps:g}' for eps in EPS)} |",
        f"|---|---|---|---|---:|{'---:|' * len(EPS)}",
    ]
    for row in rows:
        best = min(row.errors.values())
        cells = [f"**{error:.1%}**" if error == best else f"{error:.1%}" for error in row.errors.values()]
        names = (row.model, row.backend, "f32" if row.quantize == "none" else row.quantize, row.state)
        lines.append(f"| {' | '.join(names)} | {row.slope:.3g} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

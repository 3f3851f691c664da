"""Trains a compiled program and the oracle side by side, each by its own losses alone, and says how far they part.

Letters: q queries, B examples a step, N = 2qB rows, T tokens, K label positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from prgec.core.contract.arrays import FloatArray, State
from prgec.core.contract.calls import Batch, StepInputs
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.data.batches import training_batch
from prgec.core.data.encode import Row
from prgec.core.formats.adapter import masters
from prgec.runtime.engines.executorch.pte_program import PteProgram
from prgec.runtime.training.estimators import Plain
from prgec.runtime.training.prge_trainer import Estimation, PrgeTrainer
from tests.oracle import Example, Mezo, Settings

Step = tuple[Sequence[Example], float]


@dataclass(frozen=True)
class Comparison:
    """How a program and the oracle compare after a run.

    Attributes:
        steps: Steps of the run.
        max_rel_loss_diff: Largest |difference| / |oracle's loss| over all rows of all steps.
        max_rel_state_diff: Largest |difference| of B after the run, over all sites, relative to `max_abs_state`.
        max_abs_state: Largest |B| of the oracle after the run.
        mean_abs_loss_diff: Mean |difference| of a loss, over all rows of all steps.
        g_sign_agreement: Fraction of projected gradients whose sign is the oracle's, over all queries of all steps.
        first_loss: The oracle's mean loss in the first step.
        last_loss: The oracle's mean loss in the last step.
    """

    steps: int
    max_rel_loss_diff: float
    max_rel_state_diff: float
    max_abs_state: float
    mean_abs_loss_diff: float
    g_sign_agreement: float
    first_loss: float
    last_loss: float


class Run:
    """A program under the real trainer with the paper's estimator, which returns the losses row by row.

    Args:
        program: The program to train.
        eps: Perturbation scale.
        seed: Key of the noise.
        step: Number of steps already done.
    """

    def __init__(self, program: PteProgram, *, eps: float, seed: int, step: int = 0) -> None:
        self.program = program
        self._recorder = _Recorder(program)
        self.trainer = PrgeTrainer(self._recorder, Estimation(estimator=Plain(), eps=eps, seed=seed), step=step)

    def step(self, examples: Sequence[Example], lr: float) -> FloatArray:
        """Run one step on B examples; return the loss of every row: f32[N]."""
        self.trainer.step(batch_of(examples, self.program.manifest), lr)
        return self._recorder.loss_N


class _Recorder:
    """A program that remembers the losses of its last call; the trainer itself keeps only means."""

    def __init__(self, program: PteProgram) -> None:
        self._program = program
        self.loss_N: FloatArray = np.zeros(0, dtype=np.float32)

    @property
    def manifest(self) -> Manifest:
        return self._program.manifest

    @property
    def tokenizer(self) -> Tokenizer:
        return self._program.tokenizer

    def forward(self, batch: Batch, step: StepInputs) -> FloatArray:
        self.loss_N = self._program.forward(batch, step)
        return self.loss_N

    def apply(self, step: StepInputs) -> None:
        self._program.apply(step)

    def read_state(self) -> State:
        return self._program.read_state()

    def stored_lora_a(self) -> State:
        return self._program.stored_lora_a()

    def write_state(self, state: Mapping[str, FloatArray]) -> None:
        self._program.write_state(state)


def oracle_for(
    program: PteProgram, checkpoint: Path, *, eps: float, seed: int, dtype: torch.dtype = torch.float32
) -> Mezo:
    """Return the oracle of a program's training, on the checkpoint as transformers loads it."""
    from transformers import AutoModelForCausalLM

    m = program.manifest
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, local_files_only=True).eval()
    settings = Settings(q=m.q, eps=eps, seed=seed, rank=m.rank, alpha=m.alpha, a_seed=m.a_seed)
    return Mezo(model, [site.name for site in m.sites], settings)


def follow(program: PteProgram, oracle: Mezo, steps: Iterable[Step]) -> Comparison:
    """Train both on the same examples and compare every loss and the final B.

    Args:
        program: A program in its initial state.
        oracle: From `oracle_for`, at its start.
        steps: Examples and learning rate of each step.
    """
    run = Run(program, eps=oracle.settings.eps, seed=oracle.settings.seed)
    differences, absolute, agreements, means = [], [], [], []
    for number, (examples, lr) in enumerate(steps, 1):
        loss_N = run.step(examples, lr)
        expected = oracle.step(number, examples, lr).numpy()
        found = loss_N.reshape(expected.shape).astype(np.float64)
        differences.append(float((np.abs(found - expected) / np.abs(expected)).max()))
        absolute.append(float(np.abs(found - expected).mean()))
        agreements.append(np.sign(_slope(found)) == np.sign(_slope(expected)))
        means.append(float(expected.mean()))
    run.trainer.flush()
    state_diff, state_size = state_difference(program, oracle)
    return Comparison(
        len(means),
        max(differences),
        state_diff,
        state_size,
        float(np.mean(absolute)),
        float(np.mean(agreements)),
        means[0],
        means[-1],
    )


def _slope(loss_QSB: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Loss under +eps less loss under -eps, for every query: f64[q]."""
    return (loss_QSB[:, 0] - loss_QSB[:, 1]).mean(axis=1)


def state_difference(program: PteProgram, oracle: Mezo) -> tuple[float, float]:
    """Return the largest difference of B relative to the largest |B| of the oracle, and that |B|."""
    expected = {f"{name}.lora_B": b_RO.numpy() for name, b_RO in oracle.masters().items()}
    found = masters(program.read_state(), program.manifest)
    assert list(found) == list(expected)
    size = max(float(np.abs(b).max()) for b in expected.values())
    return max(float(np.abs(found[name] - expected[name]).max()) for name in expected) / size, size


def batch_of(examples: Sequence[Example], manifest: Manifest) -> Batch:
    """Return the inputs of a training step on B examples."""
    return training_batch([row_of(example) for example in examples], np.arange(len(examples)), manifest)


def row_of(example: Example) -> Row:
    """Return the row a program reads for an example: the last token is only predicted, never read."""
    tokens = (*example.prompt, *example.completion[:-1])
    first = len(example.prompt) - 1
    return Row(tokens, tuple(range(first, first + len(example.completion))), example.completion)


def random_examples(count: int, manifest: Manifest, seed: int) -> list[Example]:
    """Return examples of random tokens, of all lengths up to the program's T and K."""
    rng = np.random.default_rng(seed)
    examples = []
    for _ in range(count):
        num_targets = int(rng.integers(1, manifest.num_labels + 1))
        num_prompt = int(rng.integers(2, manifest.seq_len - num_targets + 2))
        ids = tuple(rng.integers(3, manifest.vocab_size, num_prompt + num_targets).tolist())
        examples.append(Example(ids[:num_prompt], ids[num_prompt:]))
    return examples


def random_steps(steps: int, manifest: Manifest, *, lr: float, pool: int, seed: int = 0) -> list[Step]:
    """Return steps of B examples each from a pool, and so of varying T, with a learning rate that halves and doubles.

    A learning rate that differs from step to step shows whether it stays with the g it belongs to.
    """
    examples = random_examples(pool, manifest, seed)
    rng = np.random.default_rng([seed, 1])
    chosen = [rng.choice(pool, manifest.batch_size, replace=False) for _ in range(steps)]
    return [([examples[i] for i in indices], lr * (1.0, 0.5)[n % 2]) for n, indices in enumerate(chosen)]

"""A compiled program, opened: it measures, trains, answers and is evaluated.

Letters: B examples a step, q queries, K label positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from prgec.api.adapter import Adapter
from prgec.api.inputs import Data, data_file
from prgec.core.contract.arrays import Float64Array, FloatArray
from prgec.core.contract.calls import StepInputs
from prgec.core.contract.engine import Engine
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.data.batches import training_batch
from prgec.core.data.dataset import load_dataset
from prgec.core.data.eval_set import encode_eval_set
from prgec.core.data.row import Row
from prgec.core.formats.adapter import load_adapter, save_adapter
from prgec.core.machine.files import check_free
from prgec.errors import UsageError
from prgec.runtime.engines.choose import open_program
from prgec.runtime.training.estimators import DEFAULT_ESTIMATOR, find_estimator
from prgec.runtime.training.evaluate import Evaluation, evaluate, row_losses
from prgec.runtime.training.generate import DEFAULT_MAX_TOKENS, generate
from prgec.runtime.training.gradient_trainer import GradientTrainer
from prgec.runtime.training.prge_trainer import Estimation
from prgec.runtime.training.prge_trainer import PrgeTrainer as EstimatingTrainer
from prgec.runtime.training.step import StepResult

# A text to continue, or turns of a conversation that the assistant answers.
Prompt: TypeAlias = str | Sequence[Mapping[str, Any]]
AnyAdapter: TypeAlias = "Adapter | str | Path"


class Program:
    """A program of `prgec.compile`, with the state of its adapter; nothing is loaded before it is used.

    Args:
        path: The .pte.
        engine: The engine: `executorch`, or `torch` for the graphs in PyTorch.

    Example:
        >>> program = prgec.load("model.pte")  # doctest: +SKIP
        >>> program.evaluate("test.jsonl", adapter="runs/model-1").accuracy  # doctest: +SKIP
        0.912
    """

    def __init__(self, path: str | Path, *, engine: str = "executorch") -> None:
        self.path = Path(path)
        self._engine = engine

    def __repr__(self) -> str:
        return f"Program({str(self.path)!r})"

    @cached_property
    def engine(self) -> Engine:
        """The loaded program.

        Raises:
            PrgecError: If it cannot be loaded here.
        """
        return open_program(self.path, self._engine)

    @property
    def manifest(self) -> Manifest:
        """Sizes and options that the program was compiled with."""
        return self.engine.manifest

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer inside the program."""
        return self.engine.tokenizer

    def use(self, adapter: AnyAdapter) -> None:
        """Put an adapter into the program; its optimiser starts afresh.

        Raises:
            ProgramError: If it is damaged, or of another program; the state is then unchanged.
        """
        self._flush()
        load_adapter(adapter.path if isinstance(adapter, Adapter) else Path(adapter), self.engine)
        self.__dict__.pop("_trainer", None)  # Its steps belong to the state before.

    def save_adapter(self, path: str | Path, *, force: bool = False) -> Adapter:
        """Write the present state as an adapter.

        Raises:
            UsageError: If the file exists, and `force` is not set.
        """
        check_free(Path(path), force=force)
        self._flush()
        save_adapter(Path(path), self.engine)
        return Adapter(path=Path(path), program=self.path)

    def losses(self, rows: Sequence[Row], *, adapter: AnyAdapter | None = None) -> Float64Array:
        """Return the mean negative log-likelihood of the targets of every row: f64[len(rows)].

        Args:
            rows: Rows of `prgec.read_rows`.
            adapter: Adapter to put in first; None for the present state.
        """
        self._prepare(adapter)
        return row_losses(self.engine, rows)

    def step(self, rows: Sequence[Row], *, learning_rate: float | None = None) -> StepResult:
        """Take one training step.

        Args:
            rows: B rows of `prgec.read_rows`.
            learning_rate: Learning rate; None for the program's own.

        Raises:
            UsageError: If there are not B rows.
            NumericsError: If the loss or the gradient is not finite; the state is then that of the step before.
        """
        m = self.manifest
        if len(rows) != m.batch_size:
            raise UsageError(f"a step takes {m.batch_size} rows, and got {len(rows)}")
        batch = training_batch(rows, np.arange(m.batch_size), m)
        return self._trainer.step(batch, m.lr if learning_rate is None else learning_rate)

    def apply(self, coefficients: FloatArray, *, learning_rate: float, seed: int, step: int) -> None:
        """Apply a step of `prge` that was measured elsewhere: B moves along the noise of `seed` and `step`.

        Args:
            coefficients: f32[q], one for each query.
            learning_rate: Learning rate of the step.
            seed: Key of the noise.
            step: Number of the step, from 1.

        Raises:
            UsageError: If the program computes gradients, or there are not q coefficients.
        """
        m = self.manifest
        if m.has_gradients:
            raise UsageError("the program computes gradients; coefficients are for programs of method prge")
        if np.shape(coefficients) != (m.q,):
            raise UsageError(f"coefficients have the shape {list(np.shape(coefficients))}; expected [{m.q}]")
        g_q = np.asarray(coefficients, dtype=np.float32)
        self.engine.apply(StepInputs(g_q=g_q, lr=learning_rate, seed=seed, step=step))

    def evaluate(self, data: Data, *, adapter: AnyAdapter | None = None, task: str = "auto") -> Evaluation:
        """Return loss and accuracy on data.

        Args:
            data: A data file or rows.
            adapter: Adapter to put in first; None for the present state.
            task: Task of the data.

        Raises:
            DataError: If the data are damaged, or do not fit the program.
        """
        self._prepare(adapter)
        with data_file(data) as path:
            return evaluate(self.engine, encode_eval_set(load_dataset(path, task), self.engine))

    def generate(
        self,
        prompt: Prompt,
        *,
        adapter: AnyAdapter | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: str | None = None,
    ) -> str:
        """Return the most likely continuation of a text, or answer to a conversation.

        Args:
            prompt: A text, or turns such as `[{"role": "user", "content": "hi"}]`.
            adapter: Adapter to put in first; None for the present state.
            max_tokens: Most tokens to write.
            stop: Text at which the answer ends; EOS and the end of a turn always end it.

        Raises:
            UsageError: If the program was compiled without `generate`.
            DataError: If turns are given and the checkpoint has no chat template.
        """
        self._prepare(adapter)
        tokenizer = self.tokenizer
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else tokenizer.encode_chat_prompt(list(prompt))
        return generate(self.engine, [ids], max_tokens=max_tokens, stop=stop)[0]

    def _prepare(self, adapter: AnyAdapter | None) -> None:
        if adapter is not None:
            self.use(adapter)
        self._flush()

    def _flush(self) -> None:
        """Apply what the last step left for the next one."""
        if "_trainer" in self.__dict__:
            self._trainer.flush()

    @cached_property
    def _trainer(self) -> GradientTrainer | EstimatingTrainer:
        if self.manifest.has_gradients:
            return GradientTrainer(self.engine)
        return EstimatingTrainer(self.engine, Estimation(estimator=find_estimator(DEFAULT_ESTIMATOR), eps=1e-2, seed=0))


def load(path: str | Path, *, engine: str = "executorch") -> Program:
    """Open a program of `prgec.compile`; PyTorch is not imported.

    Args:
        path: The .pte.
        engine: `executorch`, or `torch` for the graphs in PyTorch.

    Raises:
        PrgecError: When it is first used, if it cannot be loaded.

    Example:
        >>> prgec.load("model.pte")  # doctest: +SKIP
        Program('model.pte')
    """
    return Program(path, engine=engine)

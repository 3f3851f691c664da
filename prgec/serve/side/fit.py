"""Learn a side network from shards alone: no base model, no text, no labels.

Letters: n rows, B rows a step, K label positions, C candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prgec.core.contract.arrays import IntArray
from prgec.core.data.batches import epoch_order
from prgec.core.formats.side_network import SideNetwork, write_network
from prgec.errors import DataError, NumericsError
from prgec.serve.side.cache import Cache
from prgec.serve.side.fit_options import FitOptions
from prgec.serve.side.network import AdditiveNetwork
from prgec.serve.side.progress import Epoch, FitProgress, load_progress, save_progress

# Rows of a pass that only measures.
_MEASURED_ROWS = 256
# Fewer rows than this measure nothing.
_FEWEST_HELD_OUT = 8


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The result of a fit.

    Attributes:
        network: The best network.
        best_epoch: The epoch it is of.
        epochs: Measurements of every epoch.
        num_rows: Rows learnt from.
        num_held_out: Rows measured by.
        seconds: Wall time of this call.
        interrupted: Whether it was stopped before its end.
    """

    network: SideNetwork
    best_epoch: int
    epochs: tuple[Epoch, ...]
    num_rows: int
    num_held_out: int
    seconds: float
    interrupted: bool


def fit(
    cache: Cache,
    output: Path,
    options: FitOptions,
    *,
    resume: bool = False,
    on_epoch: Callable[[Sequence[Epoch]], None] = lambda epochs: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Fitted:
    """Learn a network and write it; after each epoch everything that is needed to go on is on the disk.

    Args:
        cache: Rows to learn from.
        output: File of the network.
        options: How.
        resume: Go on from what an earlier call left beside `output`, if it left anything.
        on_epoch: Called after each epoch with what all of them measured.
        should_stop: Checked after each epoch.

    Raises:
        DataError: If there are too few rows.
        NumericsError: If the loss stops being finite.
        UsageError: If an option is impossible, or what is to be resumed was learnt otherwise.
    """
    options.check()
    started = time.monotonic()
    learnt, held_out = split(len(cache), options.held_out)
    tag = f"{cache.sha256()} {asdict(options)!r}"
    with _one_thread():
        learner = _Learner(cache, options)
        epochs, best = learner.go_on_from(load_progress(output, tag) if resume else None)
        while not _is_done(epochs, options) and not should_stop():
            epoch = learner.epoch(len(epochs) + 1, learnt, held_out)
            if not epochs or epoch.score < min(each.score for each in epochs):
                best = learner.network.packed()
            epochs.append(epoch)
            save_progress(output, FitProgress(tag, tuple(epochs), best, learner.state()))
            on_epoch(epochs)
    write_network(output, best)
    best_epoch = min(epochs, key=lambda each: each.score).number if epochs else 0
    seconds = time.monotonic() - started
    return Fitted(
        network=best,
        best_epoch=best_epoch,
        epochs=tuple(epochs),
        num_rows=len(learnt),
        num_held_out=len(held_out),
        seconds=seconds,
        interrupted=not _is_done(epochs, options),
    )


def split(num_rows: int, share: float) -> tuple[IntArray, IntArray]:
    """Return the rows to learn from and those to measure by: ids sort rows at random, so the first ones will do.

    Raises:
        DataError: If nothing is left to learn from.
    """
    count = int(num_rows * share)
    count = 0 if count < _FEWEST_HELD_OUT else count
    rows = np.arange(num_rows, dtype=np.int64)
    if num_rows - count < 1:
        raise DataError("there are no rows to learn from")
    return rows[count:], rows[:count]


def _is_done(epochs: list[Epoch], options: FitOptions) -> bool:
    if len(epochs) >= options.epochs:
        return True
    if not options.patience or not epochs:
        return False
    best = min(range(len(epochs)), key=lambda index: epochs[index].score)
    return len(epochs) - 1 - best >= options.patience


class _Learner:
    """A network with its optimiser and rows."""

    def __init__(self, cache: Cache, options: FitOptions) -> None:
        self._cache = cache
        self._options = options
        self.network = AdditiveNetwork.new(cache.shape, options.rank, options.norm, options.seed)
        self._optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=options.lr, weight_decay=options.weight_decay, foreach=False
        )

    def epoch(self, number: int, learnt: IntArray, held_out: IntArray) -> Epoch:
        """Learn from all rows once, then measure."""
        started = time.monotonic()
        order = learnt[epoch_order(len(learnt), self._options.seed, number)]
        size = self._options.batch_size
        losses = []
        for at in range(0, len(order), size):
            rows = order[at : at + size]
            loss = torch.nn.functional.mse_loss(*self._outputs(rows))
            if not torch.isfinite(loss):
                raise NumericsError(f"the loss of epoch {number} is not finite", hint="lower --lr")
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            losses.append(float(loss.detach()) * len(rows))
        return Epoch(number, sum(losses) / len(order), *self._measure(held_out), seconds=time.monotonic() - started)

    def _measure(self, rows: IntArray) -> tuple[float | None, float | None]:
        """Return the mean squared error over rows, and the share of the difference that is explained."""
        if not len(rows):
            return None, None
        with torch.no_grad():
            parts = [self._outputs(rows[at : at + _MEASURED_ROWS]) for at in range(0, len(rows), _MEASURED_ROWS)]
        error = sum(float((found - wanted).square().sum()) for found, wanted in parts)
        total = sum(float(wanted.square().sum()) for _, wanted in parts)
        count = sum(wanted.numel() for _, wanted in parts)
        return error / count, 1.0 - error / total if total else 0.0

    def _outputs(self, rows: IntArray) -> tuple[Tensor, Tensor]:
        return self.network(torch.from_numpy(self._cache.values(rows))), torch.from_numpy(self._cache.dy[rows])

    def state(self) -> dict[str, Tensor]:
        """Everything that changes, by name."""
        state = {name: parameter.detach() for name, parameter in self.network.named_parameters()}
        for name, parameter in self.network.named_parameters():
            kept = self._optimizer.state[parameter]
            state |= {f"{name}.{key}": kept[key] for key in ("exp_avg", "exp_avg_sq")}
            state["step"] = kept["step"].reshape(1)
        return state

    def go_on_from(self, progress: FitProgress | None) -> tuple[list[Epoch], SideNetwork]:
        """Take over the state of an earlier fit, if there was one; return its epochs and its best network."""
        if progress is None:
            return [], self.network.packed()
        for name, parameter in self.network.named_parameters():
            with torch.no_grad():
                parameter.copy_(progress.state[name])
            kept = {key: progress.state[f"{name}.{key}"].clone() for key in ("exp_avg", "exp_avg_sq")}
            self._optimizer.state[parameter] = {"step": progress.state["step"].reshape(()).clone(), **kept}
        return list(progress.epochs), progress.best


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small products gain nothing from threads, and sums over a fixed number of them are the same everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

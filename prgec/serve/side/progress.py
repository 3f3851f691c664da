"""The checkpoint of a fit beside its output, written after each epoch, so that a killed fit can resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prgec.core.formats.side_network import SideNetwork
from prgec.core.formats.tensor_file import pack_tensors, unpack_tensors
from prgec.core.machine.files import write_atomic
from prgec.errors import DataError, UsageError

_BEST = "best."


@dataclass(frozen=True)
class Epoch:
    """The measurements of one pass over the rows.

    Attributes:
        number: Counted from 1.
        loss: Mean squared error of the steps, as they were taken.
        held_out: Mean squared error after the epoch over rows that are not learnt from; None without such rows.
        explained: Share of these rows' squared differences that the network accounts for.
        seconds: Wall time.
    """

    number: int
    loss: float
    held_out: float | None
    explained: float | None
    seconds: float

    @property
    def score(self) -> float:
        """The error by which the best network is chosen."""
        return self.loss if self.held_out is None else self.held_out


@dataclass(frozen=True)
class FitProgress:
    """A fit between two epochs.

    Attributes:
        tag: Identity of the fit, data and options; another fit does not resume from it.
        epochs: Measurements so far.
        best: The best network so far.
        state: Weights and optimiser by name.
    """

    tag: str
    epochs: tuple[Epoch, ...]
    best: SideNetwork
    state: Mapping[str, Tensor]


def progress_path(output: Path) -> Path:
    """The file beside an output."""
    return output.with_name(f"{output.name}.progress")


def save_progress(output: Path, progress: FitProgress) -> None:
    """Write it, atomically."""
    tensors = {name: np.atleast_1d(value.numpy()) for name, value in progress.state.items()}
    tensors |= {_BEST + name: array for name, array in progress.best.weights.items()}
    metadata = {"tag": progress.tag, "epochs": json.dumps([asdict(each) for each in progress.epochs])}
    write_atomic(progress_path(output), pack_tensors(tensors, {**progress.best.metadata(), **metadata}))


def load_progress(output: Path, tag: str) -> FitProgress | None:
    """Read it; None where there is none.

    Raises:
        DataError: If the file is damaged.
        UsageError: If it is of another fit.
    """
    from prgec.core.formats.shards import ShardShape

    path = progress_path(output)
    if not path.exists():
        return None
    tensors, metadata = unpack_tensors(path.read_bytes(), path)
    if metadata.get("tag") != tag:
        raise UsageError(
            "the fit to resume used other shards or other options", where=path, hint="leave out --resume to begin again"
        )
    try:
        epochs = tuple(Epoch(**each) for each in json.loads(metadata["epochs"]))
        best = {name.removeprefix(_BEST): array for name, array in tensors.items() if name.startswith(_BEST)}
        network = SideNetwork(ShardShape.from_metadata(metadata, path), metadata["norm"], best)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"the file to resume from is damaged: {error}", where=path, hint="remove it") from error
    state = {name: torch.from_numpy(array) for name, array in tensors.items() if not name.startswith(_BEST)}
    return FitProgress(tag, epochs, network, state)

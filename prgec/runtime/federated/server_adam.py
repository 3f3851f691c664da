"""An optimiser of the server: the mean of what devices trained is a direction, and Adam takes the step.

Letters: r rank, O outputs of a site.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prgec.core.contract.arrays import State
from prgec.core.contract.names import STATE_SUFFIX_MEAN, STATE_SUFFIX_SQUARE
from prgec.core.formats.adapter import pack_adapter, read_adapter
from prgec.core.machine.files import write_atomic
from prgec.errors import DataError

SERVER_OPTIMIZERS = ("none", "adam")
_BETA1, _BETA2 = 0.9, 0.99


@dataclass(frozen=True, kw_only=True)
class ServerAdam:
    """FedAdam: Reddi et al., "Adaptive Federated Optimization" (2021), algorithm 2, without bias correction as there.

        m = beta1 m + (1 - beta1) d,  v = beta2 v + (1 - beta2) d^2,  B = B + lr m / (sqrt(v) + tau)

    d is the merged state less the one before the round. The moments of a round are a file of their own, which is
    written before the round's snapshot: a server that is killed in between goes on from the round before.

    Attributes:
        folder: Folder of the run.
        lr: Learning rate of the server, > 0.
        tau: Degree of adaptivity, > 0.
    """

    folder: Path
    lr: float
    tau: float = 1e-3

    def step(self, number: int, before: State, merged: State) -> State:
        """Return the state after a round, f32[r, O] a site, and keep the moments.

        Args:
            number: The round, from 1.
            before: State that the devices began with.
            merged: State that they made of it, merged.

        Raises:
            DataError: If the moments of the round before are gone.
        """
        moments = self._read(number - 1, before)
        kept: State = {}
        after: State = {}
        for name, b in before.items():
            change = merged[name].astype(np.float64) - b
            mean = _BETA1 * moments[name + STATE_SUFFIX_MEAN] + (1 - _BETA1) * change
            square = _BETA2 * moments[name + STATE_SUFFIX_SQUARE] + (1 - _BETA2) * change**2
            kept[name + STATE_SUFFIX_MEAN] = mean.astype(np.float32)
            kept[name + STATE_SUFFIX_SQUARE] = square.astype(np.float32)
            after[name] = (b + self.lr * mean / (np.sqrt(square) + self.tau)).astype(np.float32)
        write_atomic(self._path(number), pack_adapter(kept, {"round": str(number)}))
        return after

    def forget_before(self, number: int) -> None:
        """Remove the moments of the round before one whose snapshot is there."""
        self._path(number - 1).unlink(missing_ok=True)

    def _read(self, number: int, like: State) -> State:
        names = [name + suffix for name in like for suffix in (STATE_SUFFIX_MEAN, STATE_SUFFIX_SQUARE)]
        if number == 0:
            return {name: np.zeros(1, dtype=np.float32) for name in names}
        path = self._path(number)
        if not path.exists():
            raise DataError("the moments of the server's optimiser are gone", where=path, hint="name another --out")
        found, _ = read_adapter(path)
        if set(found) != set(names):
            raise DataError("the moments of the server's optimiser are of other sites", where=path)
        return found

    def _path(self, number: int) -> Path:
        return self.folder / f"server-adam-{number}.safetensors"

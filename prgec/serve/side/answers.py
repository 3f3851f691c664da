"""Answers of a backbone with a side network beside it: the scores of both, added.

Letters: n rows, C candidates.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prgec.core.contract.arrays import FloatArray
from prgec.core.contract.listener import CallListener, ignore
from prgec.core.data.correlation import matthews, pearson, spearman
from prgec.core.data.first_tokens import FirstTokens
from prgec.core.formats.shards import SECRET
from prgec.errors import DataError, ProgramError
from prgec.runtime.engines.executorch.emitting_program import EmittingProgram, open_emitting
from prgec.serve.side.emit import run_rows, shape_of
from prgec.serve.side.row_ids import default_key_path, load_key
from prgec.serve.side.side_program import SideProgram, open_side
from prgec.serve.side.targets import centred, difference, secret_scores

# Rows whose activations are in memory at a time.
_CHUNK = 64


@dataclass(frozen=True)
class Assisted:
    """A backbone, with or without the network that was learnt beside it.

    Attributes:
        program: The backbone.
        side: The network; None for the backbone alone.
        key: The device's, where differences were from a secret head.
    """

    program: EmittingProgram
    side: SideProgram | None
    key: bytes

    def scores(self, data: FirstTokens, on_rows: CallListener = ignore) -> tuple[FloatArray, FloatArray]:
        """Return the backbone's scores, and those to answer by: f32[n, C] each.

        Raises:
            ProgramError: If the network is of another program or another number of answers.
        """
        num_classes = len(data.choices)
        self._check(num_classes)
        before = np.empty((len(data.rows), num_classes), dtype=np.float32)
        after = np.empty_like(before)
        for at in range(0, len(data.rows), _CHUNK):
            rows = data.rows[at : at + _CHUNK]
            acts, scores = run_rows(self.program, rows, data.first_tokens)
            if self.side is not None and self.side.description.shape.y_pre == SECRET:
                scores = secret_scores(acts[:, -1, 0], num_classes, self.key)
            added = 0.0 if self.side is None else self.side.run(acts)[:, 0]
            before[at : at + len(rows)] = scores
            after[at : at + len(rows)] = centred(scores) + added
            on_rows(at + len(rows), len(data.rows))
        return before, after

    def _check(self, num_classes: int) -> None:
        if self.side is None:
            return
        shape = self.side.description.shape
        if shape.num_classes != num_classes:
            raise ProgramError(
                f"the side network chooses between {shape.num_classes} answers; these rows have {num_classes}",
                where=self.side.path,
            )
        if shape != shape_of(self.program.manifest, num_classes, shape.y_pre):
            raise ProgramError(
                "the side network was learnt beside another program",
                where=self.side.path,
                hint="emit and fit again with this backbone",
            )


def open_assisted(program: Path, side: Path | None, key: Path | None, *, verify: bool = True) -> Assisted:
    """Open a backbone and its network.

    Args:
        program: The .pte of the backbone.
        side: The .pte of the network; None for the backbone alone.
        key: File of the device's key; read only where the network needs it.
        verify: Whether to compare both with their checksums.

    Raises:
        PrgecError: If one of them cannot be used.
    """
    network = open_side(side, verify=verify) if side is not None else None
    backbone = open_emitting(program, verify=verify)
    is_secret = network is not None and network.description.shape.y_pre == SECRET
    return Assisted(backbone, network, load_key(key or default_key_path()) if is_secret else b"")


@dataclass(frozen=True, kw_only=True)
class SideEvaluation:
    """The scores of a backbone with its network.

    Attributes:
        accuracy: Share of rows whose right answer has the highest score; None where answers are scores.
        matthews: Correlation of right and given answers; None where answers are scores.
        pearson: Correlation of right and given scores; None where answers are classes.
        spearman: That of their ranks.
        loss: Mean squared error of the network, what it was learnt by.
        num_examples: Rows.
        seconds: Wall time.
    """

    loss: float
    num_examples: int
    seconds: float
    accuracy: float | None = None
    matthews: float | None = None
    pearson: float | None = None
    spearman: float | None = None


def evaluate(assisted: Assisted, data: FirstTokens, on_rows: CallListener = ignore) -> SideEvaluation:
    """Score labelled rows.

    Raises:
        DataError: If a row has no label.
        ProgramError: As `Assisted.scores`.
    """
    if -1 in data.answers:
        raise DataError("a row has no label")
    started = time.monotonic()
    before, after = assisted.scores(data, on_rows)
    missing = difference(before, data.wanted) - (after - centred(before))
    loss = float(np.square(missing, dtype=np.float64).mean())
    return SideEvaluation(
        loss=loss, num_examples=len(data.rows), seconds=time.monotonic() - started, **_measures(data, after)
    )


def _measures(data: FirstTokens, after: FloatArray) -> dict[str, float]:
    if data.scores:
        found = after[:, 0].tolist()
        return {"pearson": pearson(data.scores, found), "spearman": spearman(data.scores, found)}
    chosen = after.argmax(1).tolist()
    accuracy = float((np.array(chosen) == np.array(data.answers)).mean())
    return {"accuracy": accuracy, "matthews": matthews(data.answers, chosen)}

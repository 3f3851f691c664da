"""The budget of privacy of a device: it counts how often each row was used, and stops when a row may not be used again.

A server says how many rounds there will be, and a device need not believe it: what was used is written to the device's
folder before anything is measured, and a round that would go beyond the budget is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from prgec.core.data.batches import IntArray
from prgec.core.data.row import Row
from prgec.core.data.rows_file import fingerprint
from prgec.core.machine.files import write_atomic
from prgec.errors import DataError, UsageError
from prgec.runtime.training.privacy import Privacy, PrivacyTerms
from prgec.runtime.training.privacy_budget import PrivacyBudget

BUDGET_NAME = "privacy.json"


class DeviceBudget:
    """The budget of a device, as its folder keeps it.

    Args:
        folder: Folder of the device.
        terms: Wishes of its owner.
        rows: Its rows.
        steps: Steps that the device would take in all rounds, as the server says.
        batch_size: Rows of a step, B.

    Raises:
        UsageError: If the folder has a budget of other rows or terms.
        DataError: If the file is damaged.
    """

    def __init__(self, folder: Path, terms: PrivacyTerms, rows: Sequence[Row], *, steps: int, batch_size: int) -> None:
        self._path = folder / BUDGET_NAME
        self._terms = {**asdict(terms), "rows": len(rows), "rows_crc": fingerprint(rows)}
        if self._path.exists():
            self.budget, self._visits = self._read()
        else:
            # Fixed by the first round: a server cannot raise it later.
            self.budget = PrivacyBudget.of_run(
                epsilon=terms.epsilon, delta=terms.delta, steps=steps, batch_size=batch_size, num_rows=len(rows)
            )
            self._visits = np.zeros(len(rows), dtype=np.int64)
        self._clip = terms.clip

    def charge(self, steps: Sequence[IntArray]) -> Privacy:
        """Count the rows of steps as used, and return what hides them.

        Args:
            steps: The rows of each step, i64[B].

        Raises:
            UsageError: If a row would be used more often than the budget allows; nothing is counted then.
        """
        visits = self._visits.copy()
        for indices in steps:
            visits[np.unique(indices)] += 1
        if visits.max() > self.budget.visits:
            raise UsageError(
                f"the budget of privacy is used up: epsilon {self.budget.epsilon:g} lets each row be used "
                f"{self.budget.visits} times",
                where=self._path,
            )
        document = {**self._terms, **asdict(self.budget), "used": visits.tolist()}
        write_atomic(self._path, (json.dumps(document) + "\n").encode())
        self._visits = visits
        return Privacy(noise_multiplier=self.budget.noise_multiplier, clip=self._clip)

    def _read(self) -> tuple[PrivacyBudget, IntArray]:
        damaged = DataError("the budget of privacy is damaged", where=self._path, hint="name another --out")
        try:
            document = json.loads(self._path.read_bytes())
            terms = {name: document[name] for name in self._terms}
            budget = PrivacyBudget(**{name: document[name] for name in PrivacyBudget.__dataclass_fields__})
            used = np.array(document["used"], dtype=np.int64)
        except (ValueError, TypeError, KeyError) as error:
            raise damaged from error
        if terms != self._terms:
            raise UsageError(
                "the folder has a budget of other rows, or of other --dp options",
                where=self._path,
                hint="name another --out",
            )
        if used.shape != (self._terms["rows"],):
            raise damaged
        return budget, used

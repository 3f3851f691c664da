"""The side that merges: opens one step after the other, and keeps a journal from which every device can catch up.

It never sees a model, a row or a loss: only differences of losses come in, and (step, lr, g) go out.

Letters: q queries.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from prgec.core.contract.arrays import Float64Array
from prgec.core.formats.journal_records import Header, StepRecord
from prgec.errors import UsageError
from prgec.runtime.federated.ledger import Ledger, Update
from prgec.runtime.federated.merge import Report, find_merge, merged
from prgec.runtime.training.estimators import find_estimator
from prgec.runtime.training.limits import Limits, coefficients
from prgec.runtime.training.schedules import Rates, learning_rate


class Coordinator(Ledger):
    """Merges the reports of a run; use as a context manager.

    A process that is killed begins again with the same arguments: it goes on after the last step of the journal, and
    the reports of the step that was open are sent again.

    Args:
        path: The journal; made, or continued where it is of the same run.
        header: Identity of the run, its limits included; its batch size bounds the rows of a report.
        rates: The course of the learning rate.
        merge: Row of the table of merges.

    Raises:
        UsageError: If the journal is of another run, or there is no such merge.
        DataError: If the journal cannot be read.
    """

    def __init__(self, path: Path, header: Header, rates: Rates, *, merge: str = "mean") -> None:
        self._rates, self._merge = rates, find_merge(merge)
        self._estimator = find_estimator(header.estimator)
        self._limits = Limits.of_flags(header.max_g, header.policies)
        self._reports: dict[str, Report] = {}
        super().__init__(path, header)
        for record in self.records:
            # The estimator remembers the steps that it has seen.
            coefficients(record.losses, header.eps, self._estimator)

    @property
    def step(self) -> int:
        """The step that is open for reports."""
        return self.num_steps + 1

    @property
    def is_over(self) -> bool:
        """Whether all steps are done."""
        return self.step > self.header.steps

    @property
    def num_reports(self) -> int:
        """How many devices have reported in the open step."""
        return len(self._reports)

    def submit(self, report: Report) -> bool:
        """Take a report; return whether it counts. Late ones and second ones of a device do not.

        Raises:
            DataError: If its numbers cannot be used.
        """
        report.check(self.header.q, self.header.batch_size)
        if report.step != self.step or report.device in self._reports or self.is_over:
            return False
        self._reports[report.device] = report
        return True

    def close_step(self) -> Update:
        """Merge the reports of the open step, record it, and open the next one.

        Raises:
            UsageError: If no device has reported.
        """
        if not self._reports:
            raise UsageError(f"no device has reported in step {self.step}")
        difference_q = merged(list(self._reports.values()), self._merge)
        losses = _as_losses(difference_q)
        g_q = self._limits.apply(coefficients(losses, self.header.eps, self._estimator), losses, self.step)
        record = StepRecord(
            step=self.step, lr=learning_rate(self._rates, self.step), eps=self.header.eps, losses=losses, g=g_q
        )
        (update,) = self.append([record])
        self._reports = {}
        return update


def _as_losses(difference_q: Float64Array) -> Float64Array:
    """Return losses with these differences and mean 0, f64[q, 2]: a journal has both, and nobody knows them."""
    return np.stack([difference_q / 2, -difference_q / 2], axis=1)

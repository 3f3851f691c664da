"""Early stopping: keeps the state that scored best, and says when waiting for a better one is over.

The state is kept as a file, so that a run that is killed and resumed still has it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from prgec.core.contract.engine import TrainableProgram
from prgec.core.formats.adapter import load_adapter, save_adapter
from prgec.core.formats.run_folder import BEST_NAME, RunFolder
from prgec.errors import ProgramError
from prgec.runtime.training.evaluate import Evaluation

logger = logging.getLogger(__name__)


class BestState:
    """The best state of a run, by accuracy or F1 where the task has one, else by loss.

    Args:
        patience: Evaluations without a better score after which to stop; 0 never stops and keeps nothing.
        folder: Where the state is kept.
    """

    def __init__(self, patience: int, folder: RunFolder) -> None:
        self._patience = patience
        self._folder = folder
        self._waited = 0
        self.evaluation: Evaluation | None = None
        self.step: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether patience has run out."""
        return 0 < self._patience <= self._waited

    def hear(self, step: int, evaluation: Evaluation, program: TrainableProgram) -> None:
        """Take note of an evaluation of the program's present, flushed state; of equal scores the earlier one wins."""
        if self._patience and self._note(step, evaluation):
            save_adapter(self._folder.file(BEST_NAME), program)

    def take_up(self, evaluations: Sequence[tuple[int, Evaluation]]) -> None:
        """Continue after the evaluations of a resumed run; its best state is in the folder."""
        if self._patience and (self._folder.path / BEST_NAME).is_file():
            for step, evaluation in evaluations:
                self._note(step, evaluation)

    def restore(self, program: TrainableProgram) -> Evaluation | None:
        """Give the program its best state back, if one is kept, and return what it scored.

        A file that cannot be read costs the best state, not the last one.
        """
        if self.evaluation is None:
            return None
        try:
            load_adapter(self._folder.path / BEST_NAME, program)
        except ProgramError as error:
            logger.warning("the best state is lost, the last one is kept: %s", error)
            self.step = self.evaluation = None
        return self.evaluation

    def _note(self, step: int, evaluation: Evaluation) -> bool:
        if self.evaluation is not None and evaluation.score <= self.evaluation.score:
            self._waited += 1
            return False
        self._waited, self.step, self.evaluation = 0, step, evaluation
        return True

"""A whole plan: rows, the choice, and what else a user might do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prgec.compiler.plan.choose import Choice, choose
from prgec.compiler.plan.options import PlanOptions
from prgec.compiler.plan.others import OtherRow, largest_by_method, other_rows
from prgec.compiler.plan.rows import PlanRow, plan_rows
from prgec.compiler.plan.shape import ModelShape
from prgec.compiler.plan.speed import Speed


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The ways that fit a budget.

    Attributes:
        shape: The model.
        options: The requested plan.
        rows: Every way to train, what learns most of a row first.
        choice: The one to take.
        others: Other ways to train, with as many rows of as many tokens.
        largest: By method, the largest well-known model of the family that fits.
        speed: Where times are from.
    """

    shape: ModelShape
    options: PlanOptions
    rows: tuple[PlanRow, ...]
    choice: Choice
    others: tuple[OtherRow, ...]
    largest: dict[str, str]
    speed: Speed

    def energy_j(self, row: PlanRow) -> float | None:
        """Joules of all steps, where the device's power is given."""
        watts = self.options.watts
        return None if watts is None or row.run_s is None else watts * row.run_s

    def to_json(self) -> dict[str, Any]:
        """The document `--json` prints."""
        return {
            "model": self.shape.name,
            "weights": self.shape.num_weights,
            "memory_bytes": self.options.memory,
            "seconds": self.options.seconds,
            "steps": self.options.steps,
            "speed": self.speed.origin,
            "rows": [row.to_json() for row in self.rows],
            "choice": {
                **self.choice.row.to_json(),
                "reasons": self.choice.reasons,
                "commands": self.choice.commands,
                "energy_j": self.energy_j(self.choice.row),
            },
            "others": [row.to_json() for row in self.others],
            "largest": self.largest,
        }


def make_plan(shape: ModelShape, options: PlanOptions, speed: Speed, model: str) -> Plan:
    """Plan a run.

    Args:
        shape: The model.
        options: The budget.
        speed: Speed of the machine.
        model: The user's name of the model, for the command line.

    Raises:
        UsageError: If an option is impossible, or nothing fits.
    """
    options.check(shape)
    rows = plan_rows(shape, options, speed)
    choice = choose(rows, shape, options, model)
    work = choice.row.work
    others = other_rows(shape, work.batch_size, work.seq_len, options.memory)
    largest = dict(largest_by_method(shape, options.memory, work, options.driver))
    return Plan(
        shape=shape,
        options=options,
        rows=tuple(rows),
        choice=choice,
        others=tuple(others),
        largest=largest,
        speed=speed,
    )

"""How far a compilation is, for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

# Stages in order, with their usual shares of a compilation's time (docs/reports/compile.md: 32 layers, and SmolLM2).
SHARES = {"load": 0.17, "export": 0.2, "passes": 0.27, "lower": 0.34, "write": 0.02}
STAGES = tuple(SHARES)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A moment of a compilation.

    Attributes:
        stage: One of `STAGES`.
        done: Finished parts of the stage.
        total: Parts of the stage; 0 where it has none to count.
        detail: The part at work and its size, such as `differentiate, 5,210 nodes`; empty if there is nothing to add.
    """

    stage: str
    done: int = 0
    total: int = 0
    detail: str = ""

    @property
    def fraction(self) -> float:
        """Share of the whole compilation that is done, by the usual shares of its stages; 0 to 1."""
        before = sum(SHARES[name] for name in STAGES[: STAGES.index(self.stage)])
        return before + SHARES[self.stage] * (self.done / self.total if self.total else 0.0)


Listener: TypeAlias = Callable[[Progress], None]
# Reports that a part of a stage begins: parts done, parts in all, and what it is.
Part: TypeAlias = Callable[[int, int, str], None]


def ignore(progress: Progress) -> None:
    """Listen to nothing."""
    del progress

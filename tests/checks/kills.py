"""The outcome of kills, as the tools that break runs count and print it."""

from __future__ import annotations

from dataclasses import dataclass

# Names of the last columns.
HEAD = f"{'lost':>6}{'differ':>8}{'finished':>10}"


@dataclass(kw_only=True)
class KilledWork:
    """Counts that every kind of work has.

    Attributes:
        lost: Parts that had been reported and were then missing.
        differ: Results that are not those of work that nothing happened to.
        finished: Works that were brought to their end.
    """

    lost: int = 0
    differ: int = 0
    finished: int = 0

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost."""
        return not (self.lost or self.differ) and self.finished > 0

    def __str__(self) -> str:
        return f"{self.lost:>6}{self.differ:>8}{self.finished:>10}"

"""Records of passes, as data that needs no graph."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Refusal:
    """A place where a pass could have applied and did not.

    Attributes:
        where: Module path or node text.
        reason: Why, in one clause.
    """

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class PassRecord:
    """The effect of one pass.

    Attributes:
        text: The pass with its options.
        changed: Whether it changed the graph.
        hits: Places rewritten.
        op_diff: Op name -> (calls before, calls after), only where they differ.
        refusals: Places it left alone, with reasons.
        seconds: Wall-clock time.
    """

    text: str
    changed: bool
    hits: int
    op_diff: dict[str, tuple[int, int]] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    seconds: float = 0.0

    def summary(self) -> str:
        """One line: `dualize{q=4}: 4 hits, aten.bmm: 0 -> 4 (+4)`."""
        ops = ", ".join(f"{op}: {a} -> {b} ({b - a:+d})" for op, (a, b) in sorted(self.op_diff.items()))
        return f"{self.text}: {self.hits} hits" + (f", {ops}" if ops else "" if self.changed else ", no change")

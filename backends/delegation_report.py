"""Which ops of a program delegates compute, as data that needs no graph."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Delegate:
    """One delegate: which backend it belongs to, how many ops it took, and which."""

    backend: str
    ops: int
    op_counts: dict[str, int]


@dataclass(frozen=True)
class CpuOp:
    """Calls of one op outside every delegate, for one reason."""

    op: str
    count: int
    reason: str


@dataclass(frozen=True)
class DelegationReport:
    """The whole picture of one method."""

    delegates: tuple[Delegate, ...]
    cpu_ops: tuple[CpuOp, ...]

    def to_json(self) -> str:
        """Serialise with sorted keys."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> DelegationReport:
        """Read what `to_json` wrote."""
        document = json.loads(text)
        return cls(
            tuple(Delegate(**each) for each in document["delegates"]),
            tuple(CpuOp(**each) for each in document["cpu_ops"]),
        )

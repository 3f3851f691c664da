"""The result of a compilation, as data that needs neither torch nor ExecuTorch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prgec.backends.delegation_report import DelegationReport
from prgec.core.contract.manifest import Manifest
from prgec.passes.record import PassRecord, Refusal


@dataclass(frozen=True, kw_only=True)
class CompileResult:
    """A finished compilation.

    Attributes:
        path: The .pte.
        manifest: Manifest of the program.
        delegation: Delegates and CPU ops of the forward.
        passes: Record of each pass.
        file_bytes: Size of the .pte.
        seconds: Wall-clock time by stage, of the compilation that made the file.
        is_copy: Whether the file was copied from the cache.
    """

    path: Path
    manifest: Manifest
    delegation: DelegationReport
    passes: tuple[PassRecord, ...]
    file_bytes: int
    seconds: dict[str, float]
    is_copy: bool = False

    def to_json(self) -> str:
        """Serialise all but the path and whether it is a copy."""
        return json.dumps(
            {
                "manifest": self.manifest.to_json(),
                "delegation": self.delegation.to_json(),
                "passes": [asdict(each) for each in self.passes],
                "file_bytes": self.file_bytes,
                "seconds": self.seconds,
            },
            sort_keys=True,
        )

    @classmethod
    def of_copy(cls, text: str, path: Path) -> CompileResult:
        """Read what `to_json` wrote, of a program whose copy is at `path`.

        Raises:
            ValueError, KeyError, TypeError: If the text was not written by `to_json`.
        """
        document = json.loads(text)
        return cls(
            path=path,
            manifest=Manifest.from_json(document["manifest"]),
            delegation=DelegationReport.from_json(document["delegation"]),
            passes=tuple(_pass_of(each) for each in document["passes"]),
            file_bytes=document["file_bytes"],
            seconds=document["seconds"],
            is_copy=True,
        )


def _pass_of(document: dict[str, Any]) -> PassRecord:
    refusals = tuple(Refusal(**each) for each in document["refusals"])
    op_diff = {op: (before, after) for op, (before, after) in document["op_diff"].items()}
    return PassRecord(**{**document, "refusals": refusals, "op_diff": op_diff})

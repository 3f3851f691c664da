"""The manifest of a program and the layout of its file, as one document. Imports neither torch nor executorch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import (
    CONTRACT_VERSIONS,
    DELEGATION_METHOD,
    EMIT_METHOD,
    FORWARD_METHOD,
    MANIFEST_METHOD,
    VERSION_METHOD,
)
from prgec.core.contract.pte import PteFile, read_pte
from prgec.errors import ProgramError

_VERSIONS = ", ".join(map(str, CONTRACT_VERSIONS))
_NOT_OURS = "this .pte was not made by prgec compile"


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A program's manifest, delegation report and file structure."""

    contract_version: int
    manifest: Manifest
    delegates: tuple[dict[str, Any], ...]
    cpu_ops: tuple[dict[str, Any], ...]
    pte: PteFile

    def to_json(self) -> dict[str, Any]:
        """One JSON document; other tools rely on its keys."""
        fields = asdict(self.manifest)
        return {
            "contract_version": self.contract_version,
            **fields,
            "delegates": list(self.delegates),
            "cpu_ops": list(self.cpu_ops),
            "methods": {
                name: {
                    "delegates": [asdict(d) for d in method.delegates],
                    "kernel_calls": method.kernel_calls,
                    "planned_bytes": method.planned_bytes,
                }
                for name, method in self.pte.methods.items()
            },
            "state_bytes": self.state_bytes,
            "file_bytes": self.pte.file_bytes,
        }

    @property
    def state_bytes(self) -> int:
        """Size of the trainable state."""
        m = self.manifest
        copies = 2 * m.q if m.state == "dual" else 1
        return sum(4 * copies * m.rank * site.out_features for site in m.sites)


def inspect_program(path: Path) -> Inspection:
    """Read everything a .pte says.

    Raises:
        ProgramError: If the file is missing, damaged, not ours, or of another contract version.
    """
    pte = read_pte(path)
    version = pte.constants.get(VERSION_METHOD)
    manifest = pte.constants.get(MANIFEST_METHOD)
    main = next((name for name in (FORWARD_METHOD, EMIT_METHOD) if name in pte.methods), None)
    if not isinstance(version, int) or not isinstance(manifest, str) or main is None:
        raise ProgramError("the program has no prgec manifest", where=path, hint=_NOT_OURS)
    if version not in CONTRACT_VERSIONS:
        raise ProgramError(
            f"the program speaks contract version {version}; this prgec speaks {_VERSIONS}",
            where=path,
            hint="compile it again with this prgec",
        )
    report = _delegation(pte.constants.get(DELEGATION_METHOD), path)
    delegates = tuple(report["delegates"])
    found = len(pte.methods[main].delegates)
    if len(delegates) != found:
        what = f"the program reports {len(delegates)} delegates and has {found}"
        raise ProgramError(what, where=path, hint="compile it again")
    return Inspection(
        contract_version=version,
        manifest=Manifest.from_json(manifest),
        delegates=delegates,
        cpu_ops=tuple(report["cpu_ops"]),
        pte=pte,
    )


def _delegation(text: object, path: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        report = json.loads(str(text))
        return {key: [dict(row) for row in report[key]] for key in ("delegates", "cpu_ops")}
    except (ValueError, KeyError, TypeError) as error:
        raise ProgramError("the program has no delegation report", where=path, hint=_NOT_OURS) from error

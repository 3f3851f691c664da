"""The runs below a folder: found by looking, called by ids that are looked up and never become part of a path."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.core.contract.names import CONTRACT_VERSIONS
from prgec.core.formats.run_folder import (
    ADAPTER_NAME,
    METRICS_NAME,
    PARTIAL_JOURNAL_NAME,
    PARTIAL_METRICS_NAME,
    SUMMARY_NAME,
)
from prgec.core.machine.folder_lock import holder

_MARKS = {SUMMARY_NAME, METRICS_NAME, PARTIAL_METRICS_NAME, PARTIAL_JOURNAL_NAME}
# Runs of a study or a demo lie one folder further down.
_DEPTH = 3
UNDER_WAY = "under way"
CUT_OFF = "cut off"


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A run folder as a list shows it.

    Attributes:
        id: Its id in requests.
        name: Its place below the folder.
        folder: The folder.
        summary: Content of run.json; empty where there is none, or it cannot be read.
        process: Process that is writing to it; None for none.
        remark: Remark on anything odd about it.
        changed: When, in seconds since 1970.
        is_partial: Whether it has files that a run gives their own names in the end.
    """

    id: str
    name: str
    folder: Path
    summary: Mapping[str, Any]
    process: int | None
    remark: str
    changed: float
    is_partial: bool = False

    @property
    def status(self) -> str:
        """Its state, in words."""
        if self.process is not None:
            return UNDER_WAY
        if self.is_partial:
            return CUT_OFF
        status = self.summary.get("status", CUT_OFF)
        return status if isinstance(status, str) else "complete"

    @property
    def can_resume(self) -> bool:
        """Whether there is more to do."""
        return self.process is None and self.status in (CUT_OFF, "interrupted")

    @property
    def adapter(self) -> Path | None:
        """Its learnt adapter, once it has ended."""
        path = self.folder / ADAPTER_NAME
        return path if path.is_file() else None

    def fact(self, group: str, name: str) -> Any:
        """Return one of its options, or of its program's facts; None for one it does not say."""
        facts = self.summary.get(group)
        return facts.get(name) if isinstance(facts, dict) else None


class RunList:
    """All runs below a folder.

    Args:
        root: The folder; made when the first run is.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._summaries: dict[Path, tuple[tuple[int, int], Mapping[str, Any], str]] = {}

    def runs(self) -> list[ListedRun]:
        """Return all runs, the newest first."""
        found = [self._read(folder) for folder in self._folders()]
        return sorted(found, key=lambda run: (run.process is None, -run.changed))

    def find(self, name: str) -> ListedRun | None:
        """Return the run an id is of."""
        folder = next((folder for folder in self._folders() if self.id_of(folder) == name), None)
        return None if folder is None else self._read(folder)

    def id_of(self, folder: Path) -> str:
        """Return what requests call a folder."""
        return hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]

    def _folders(self) -> Iterator[Path]:
        yield from folders_below(self.root, _MARKS)

    def _read(self, folder: Path) -> ListedRun:
        # First of all: a run that ends after this look is under way, and one that ended before it has its last files.
        process = holder(folder)
        summary, remark = self._summary(folder)
        try:
            changed = folder.stat().st_mtime
        except OSError:
            changed = 0.0
        name = str(folder.relative_to(self.root))
        is_partial = (folder / PARTIAL_METRICS_NAME).exists() or (folder / PARTIAL_JOURNAL_NAME).exists()
        return ListedRun(
            id=self.id_of(folder),
            name=name,
            folder=folder,
            summary=summary,
            process=process,
            remark=remark,
            changed=changed,
            is_partial=is_partial,
        )

    def _summary(self, folder: Path) -> tuple[Mapping[str, Any], str]:
        path = folder / SUMMARY_NAME
        try:
            about = path.stat()
        except OSError:
            return {}, ""
        stamp = (about.st_mtime_ns, about.st_size)
        known = self._summaries.get(path)
        if known is None or known[0] != stamp:
            known = (stamp, *_read_summary(path))
            self._summaries[path] = known
        return known[1], known[2]


def folders_below(root: Path, marks: Set[str]) -> Iterator[Path]:
    """Yield the folders below one that have a file of some names, and no folders below those.

    Args:
        root: The folder.
        marks: The names.
    """

    def below(folder: Path, depth: int) -> Iterator[Path]:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return
        if depth and marks & {entry.name for entry in entries}:
            yield folder
        elif depth < _DEPTH:
            for entry in entries:
                # A link could lead in circles, or out.
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    yield from below(Path(entry.path), depth + 1)

    yield from below(root, 0)


def _read_summary(path: Path) -> tuple[Mapping[str, Any], str]:
    try:
        summary = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}, "its run.json is damaged"
    if not isinstance(summary, dict):
        return {}, "its run.json is damaged"
    contract = summary.get("contract")
    remark = "" if contract in CONTRACT_VERSIONS else f"made by another version of prgec (contract {contract})"
    return summary, remark

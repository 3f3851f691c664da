"""Rows that installed packages add to a table, by entry points. A package that is broken is named in one line."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from prgec.errors import UsageError


def plugins_of(group: str, taken: Collection[str] = ()) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; those of prgec itself keep their names.

    Args:
        group: Name of the group, `prgec.tasks` for one.
        taken: Names that are not to be replaced.
    """
    return {point.name: point for point in entry_points(group=group) if point.name not in taken}


def load_plugin(point: EntryPoint, kind: type | None = None) -> Any:
    """Import what an entry point names.

    Args:
        point: The entry point.
        kind: Class that it must be of; None for any.

    Raises:
        UsageError: If it cannot be imported, or is something else.
    """
    package = point.dist.name if point.dist is not None else point.value
    # Our own miss an extra or have a bug: nobody can remove the package for that.
    if package == "prgec":
        return point.load()
    hint = f"mend the package, or remove it: pip uninstall {package}"
    try:
        loaded = point.load()
    except Exception as error:  # whatever a module of strangers raises
        raise UsageError(f"{point.value} cannot be imported: {error}", where=point.group, hint=hint) from error
    if kind is not None and not isinstance(loaded, kind):
        raise UsageError(f"{point.value} is not a {kind.__name__}", where=point.group, hint=hint)
    return loaded

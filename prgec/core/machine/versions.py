"""Versions of what is installed."""

from __future__ import annotations

import importlib.metadata

from prgec.version import __version__

# Packages that decide the bytes of a program.
PACKAGES = ("torch", "executorch", "torchao", "transformers")


def version_of(package: str) -> str | None:
    """Return the version of prgec itself or of a package; None where it is not installed.

    >>> version_of("no-such-package") is None
    True
    """
    try:
        return __version__ if package == "prgec" else importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_versions() -> dict[str, str]:
    """Return the versions of prgec and of the compiler's packages; those that are not installed are left out."""
    found = {name: version_of(name) for name in ("prgec", *PACKAGES)}
    return {name: version for name, version in found.items() if version is not None}

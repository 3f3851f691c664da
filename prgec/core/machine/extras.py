"""How to get the packages that only some uses need: the extras of pyproject.toml, by what they bring."""

from __future__ import annotations

import importlib.metadata
import re

# `gguf>=0.17; extra == "gguf"`, with markers of the platform before the extra.
_REQUIREMENT = re.compile(r"^(?P<package>[^;]+);.*\bextra == ['\"](?P<extra>[^'\"]+)['\"]")


def extra_hint(extra: str) -> str:
    """Return the command that installs what an extra names.

    It names the packages, not the extra: prgec may be a checkout, and the package index has no prgec.

    Args:
        extra: Its name in pyproject.toml.
    """
    found = filter(None, map(_REQUIREMENT.match, importlib.metadata.requires("prgec") or ()))
    packages = [each["package"].strip() for each in found if each["extra"] == extra]
    if not packages:
        raise LookupError(f"prgec has no extra {extra!r}")
    return "pip install " + " ".join(f"'{package}'" for package in packages)

"""How to get the packages that only some uses need: the extras of pyproject.toml, by what they bring."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re

from prgec.errors import BackendError

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


# Packages of the extra `compile`, by the modules that the compiler imports.
_COMPILER_MODULES = ("torch", "executorch", "torchao", "transformers", "sentencepiece", "google")


def missing_compiler(error: ModuleNotFoundError) -> BackendError | None:
    """Return the error to raise where the compiler's packages are not installed; None for other modules."""
    module = (error.name or "").partition(".")[0]
    return _needs_compiler(module) if module in _COMPILER_MODULES else None


def check_compiler() -> None:
    """Check that the compiler's packages are installed; a device that only runs programs has none.

    Raises:
        BackendError: Naming the first that is missing.
    """
    for module in _COMPILER_MODULES[:4]:
        if importlib.util.find_spec(module) is None:
            raise _needs_compiler(module)


def _needs_compiler(module: str) -> BackendError:
    return BackendError(
        f"{module} is not installed, and this needs the compiler's packages", hint=extra_hint("compile")
    )

"""Writes the C++ driver as a project of its own: its sources, the prge kernels, and a README with three commands."""

from __future__ import annotations

import shutil
from pathlib import Path

from prgec.errors import UsageError

_DRIVER = Path(__file__).resolve().parent / "csrc"
# Not resolved: the folder is a link in a source tree, and part of the package in a wheel.
_KERNELS = Path(__file__).parents[1] / "runtime_ops" / "csrc"
_MARK = Path("include") / "prge" / "trainer.h"
# Folders of a build, and of the part that Python loads.
_LEFT_OUT = ("build", "python")


def check_driver_folder(folder: Path) -> None:
    """Refuse a folder that holds something else.

    Raises:
        UsageError: If it is a file, or holds files and no driver.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError("--emit-driver is a file", where=folder, hint="name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise UsageError("--emit-driver holds files that are not a driver", where=folder, hint="name another folder")


def emit_driver(folder: Path) -> None:
    """Write the project, over an earlier one if there is one.

    Raises:
        UsageError: If the folder holds something else.
        OSError: If the folder cannot be written.
    """
    check_driver_folder(folder)
    shutil.copytree(_DRIVER, folder, ignore=shutil.ignore_patterns(*_LEFT_OUT), dirs_exist_ok=True)
    shutil.copytree(_KERNELS, folder / "kernels", dirs_exist_ok=True)

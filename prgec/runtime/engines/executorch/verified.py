"""A .pte compared with its checksums before the runtime sees any of it (docs/decisions/013-checksums.md)."""

from __future__ import annotations

from pathlib import Path

from prgec.core.contract.checksums import Checksums
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.ptd import find_data
from prgec.core.contract.tokenizer import Tokenizer
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.methods import Methods
from prgec.runtime.engines.executorch.pte_file import compare
from prgec.runtime.engines.executorch.runtime import load_raw, open_constants


def check_table(checksums: Checksums | None, has_checksums: bool, path: Path, *, verify: bool) -> None:
    """Check that a program which says that it has a table still has one.

    Raises:
        ProgramError: If it has lost it.
    """
    if verify and has_checksums and checksums is None:
        raise ProgramError("the program has lost its checksums", where=path, hint="copy or compile it again")


def open_verified(path: Path, *, verify: bool) -> tuple[Methods, Manifest, Tokenizer]:
    """Map a program of `prgec compile`, and the data file beside it where it has one.

    Args:
        path: The .pte.
        verify: Whether to compare its bytes with its checksums first.

    Raises:
        ProgramError: If a file is missing, damaged, not made by prgec, or of another contract version.
    """
    checksums = compare(path, verify=verify)
    raw, manifest, tokenizer = open_constants(path)
    check_table(checksums, manifest.has_checksums, path, verify=verify)
    if manifest.data_sha256:
        data = find_data(path, manifest.data_sha256)
        if checksums is not None:
            checksums.check_data(data)
        raw = load_raw(path, data)
    return raw, manifest, tokenizer

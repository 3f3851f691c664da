"""Signatures of files, made and checked by OpenSSH."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from prgec.errors import DataError, UsageError

# The namespace of a signature: one that was made for another purpose does not count.
NAMESPACE = "prgec"


def check_signature(path: Path, signers: Path) -> str:
    """Check that a file's signature, PATH.sig, is of a known key; return the name that the key goes by.

    Args:
        path: The file.
        signers: Known keys, a name and a public key a line: the `allowed_signers` of ssh-keygen.

    Raises:
        UsageError: If OpenSSH or the file of keys is not there.
        DataError: If there is no signature, or it is not of this file and a known key.
    """
    if shutil.which("ssh-keygen") is None:
        raise UsageError(
            "signatures are checked by ssh-keygen, which is not installed", hint="install OpenSSH's client"
        )
    if not signers.is_file():
        raise UsageError("no such file", where=signers)
    signature = path.with_name(f"{path.name}.sig")
    if not signature.is_file():
        raise DataError(
            "the file has no signature",
            where=signature,
            hint=f"make one: ssh-keygen -Y sign -n {NAMESPACE} -f KEY {path}",
        )
    unknown = DataError("the signature is not of this file by a known key", where=signature)
    known = ("-f", str(signers), "-s", str(signature))
    found = _ssh_keygen(["find-principals", *known], b"")
    names = found.stdout.decode(errors="replace").splitlines()
    if found.returncode or not names:
        raise unknown
    # A key may go by several names, and all of them are the same key.
    if _ssh_keygen(["verify", *known, "-I", names[0], "-n", NAMESPACE], path.read_bytes()).returncode:
        raise unknown
    return names[0]


def _ssh_keygen(arguments: Sequence[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ssh-keygen", "-Y", *arguments], input=data, capture_output=True, check=False)

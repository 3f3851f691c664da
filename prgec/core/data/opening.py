"""Open data files as bytes, packed in any way: recognised by their first bytes, not by their names.

`-` is standard input. It is copied to a temporary file first, since some commands read data more than once.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import gzip
import io
import lzma
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from prgec.core.machine.extras import extra_hint
from prgec.errors import DataError

STDIN = "-"
BOM = b"\xef\xbb\xbf"
PARQUET, ARROW_FILE, ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_GZIP, _XZ, _BZIP2, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"BZh", b"\x28\xb5\x2f\xfd"
_HEAD_BYTES = 1 << 16
_KEPT: list[Any] = []


@contextlib.contextmanager
def open_data(path: Path) -> Iterator[tuple[IO[bytes], str]]:
    """Open a file for reading; give what it holds, unpacked, and the name of the packing, empty for none.

    Raises:
        DataError: If the file is missing, unreadable or damaged, then or while it is read.
    """
    try:
        with _source(path).open("rb") as file:
            start = file.read(len(_XZ))
            file.seek(0)
            packing, stream = _unpacked(file, start, path)
            yield stream, packing
    except FileNotFoundError as error:
        raise DataError("no such data file", where=path) from error
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"the packed file is damaged or cut short: {error}", where=path) from error
    except OSError as error:
        raise DataError(f"cannot read the data file: {error.strerror or error}", where=path) from error


def head_of(path: Path) -> bytes:
    """Return what a file begins with, unpacked and without a byte order mark: up to 64 KiB."""
    with open_data(path) as (file, _):
        return file.read(_HEAD_BYTES).removeprefix(BOM)


def text_of_file(path: Path) -> str:
    """Return a whole file as text, without a byte order mark.

    Raises:
        DataError: If it cannot be read, or is not UTF-8.
    """
    with open_data(path) as (file, _):
        content = file.read().removeprefix(BOM)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text (byte {error.start + 1})", where=path) from error


def import_pyarrow(path: Path, what: str) -> Any:
    """Return the module pyarrow.

    Raises:
        DataError: If it is not installed; says what needs it.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(f"{what} needs the package pyarrow", where=path, hint=extra_hint("parquet")) from error
    return pyarrow


def _unpacked(file: IO[bytes], start: bytes, path: Path) -> tuple[str, IO[bytes]]:
    if start.startswith(_GZIP):
        return "gzip", cast("IO[bytes]", gzip.open(file))
    if start.startswith(_XZ):
        return "xz", lzma.open(file)
    if start.startswith(_BZIP2):
        return "bzip2", bz2.open(file)
    if start.startswith(_ZSTD):
        return "zstd", io.BufferedReader(import_pyarrow(path, "zstd").CompressedInputStream(file, "zstd"))
    return "", file


def _source(path: Path) -> Path:
    return _standard_input() if str(path) == STDIN else path


@functools.cache
def _standard_input() -> Path:
    """Return a file with all of standard input, which goes when the process does."""
    copy = tempfile.NamedTemporaryFile(prefix="prgec-stdin-")
    shutil.copyfileobj(sys.stdin.buffer, copy)
    copy.flush()
    # The file goes with the object.
    _KEPT.append(copy)
    return Path(copy.name)

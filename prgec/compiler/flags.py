"""Passes name their own options in errors; a user of the command line reads the flags that set them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prgec.errors import PrgecError

# Names in passes -> names on the command line.
FLAGS = {
    "inject-lora-fa{targets}": "--targets",
    "inject-lora-fa{layers}": "--layers",
    "leave out share-prefix": "--prefix none",
    "save_program": "prgec compile --save-program",
}


@contextmanager
def named_by_flags() -> Iterator[None]:
    """Put the names of flags into errors raised inside.

    Raises:
        PrgecError: The error raised inside, of the same class.
    """
    try:
        yield
    except PrgecError as error:
        what, hint = in_flags(error.what), in_flags(error.hint or "")
        if (what, hint) == (error.what, error.hint or ""):
            raise
        raise type(error)(what, where=error.where, hint=hint or None) from error


def in_flags(text: str) -> str:
    """Return `text` with flags where it names options of passes."""
    for option, flag in FLAGS.items():
        text = text.replace(option, flag)
    return text

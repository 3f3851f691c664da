"""The compiled door to ExecuTorch's runtime (prgec/device/csrc/python/methods.cpp), and what passes through it."""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Value: TypeAlias = npt.NDArray[Any] | str | int

_log = logging.getLogger(__name__)

_MAX_RANK = 8
# Types of values that are not tensors.
_TEXT, _NUMBER = -1, -2
# ExecuTorch's numbers of the types that contracts know.
_TYPES: dict[int, npt.DTypeLike] = {0: np.uint8, 3: np.int32, 4: np.int64, 6: np.float32, 11: np.bool_}
_NUMBERS = {np.dtype(each): number for number, each in _TYPES.items()}


class View(ctypes.Structure):
    """A value as methods.cpp sees it: a tensor, a text or a number."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * _MAX_RANK),
    )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a tensor."""
        return tuple(self.sizes[: self.rank])


def view_of(array: npt.NDArray[Any]) -> View:
    """Show the memory of a contiguous array, which has to outlive the view."""
    return View(array.ctypes.data, _NUMBERS[array.dtype], array.ndim, (ctypes.c_int64 * _MAX_RANK)(*array.shape))


def array_of(view: View) -> npt.NDArray[Any]:
    """Return an array over the memory of a tensor."""
    dtype = np.dtype(_TYPES[view.type])
    num_bytes = int(np.prod(view.shape, dtype=np.int64)) * dtype.itemsize
    memory = memoryview((ctypes.c_char * num_bytes).from_address(view.data)) if num_bytes else memoryview(b"")
    return np.frombuffer(memory, dtype=dtype).reshape(view.shape)


def value_of(view: View) -> Value:
    """Return a copy of what a view shows."""
    if view.type == _TEXT:
        return ctypes.string_at(view.data, view.sizes[0]).decode()
    return int(view.sizes[0]) if view.type == _NUMBER else array_of(view).copy()


def _say(line: bytes) -> None:
    _log.warning("%s", line.decode(errors="replace"))


# Lives as long as the library may call it.
WARN = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_say)


@functools.cache
def library() -> Any:
    """Load the compiled library.

    Raises:
        BackendError: If it has to be built here and cannot be.
    """
    from prgec.runtime_ops.native import load_methods_library

    loaded = load_methods_library()
    loaded.prgec_methods_open.restype = ctypes.c_void_p
    loaded.prgec_methods_has.restype = ctypes.c_bool
    for name in ("close", "forget", "keep", "seal"):
        getattr(loaded, f"prgec_methods_{name}").restype = None
    handle, text, views = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(View)
    number = ctypes.POINTER(ctypes.c_int64)
    loaded.prgec_methods_open.argtypes = (text, text, type(WARN), ctypes.POINTER(ctypes.c_int))
    loaded.prgec_methods_fork.argtypes = (handle, ctypes.c_int64, ctypes.c_int64)
    loaded.prgec_methods_decode.argtypes = (handle, ctypes.c_void_p, ctypes.c_void_p, views)
    for name in ("close", "forget", "open_cache", "open_caches", "seal"):
        getattr(loaded, f"prgec_methods_{name}").argtypes = (handle,)
    loaded.prgec_methods_extend.argtypes = (handle, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, views)
    loaded.prgec_methods_has.argtypes = (handle, text)
    loaded.prgec_methods_keep.argtypes = (handle, text, text, text)
    loaded.prgec_methods_load.argtypes = (handle, text, number, number)
    loaded.prgec_methods_input.argtypes = (handle, text, ctypes.c_int64, views)
    loaded.prgec_methods_run.argtypes = (handle, text, views, ctypes.c_int64, views)
    loaded.prgec_methods_attribute.argtypes = (handle, text, text, views)
    return loaded

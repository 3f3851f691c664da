"""Methods of a program loaded with XNNPACK's packed weights in a file, as the C++ driver loads them (docs/cache.md).

ExecuTorch's bindings load a method by its name alone, and XNNPACK takes that file from the options of a load and from
nowhere else. So these methods go through a library of our own (prgec/device/csrc/python/methods.cpp), which calls the
same runtime: tensors come and go as views.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prgec.contract.names import EMIT_METHOD, FORWARD_METHOD
from prgec.machine.packed_weights import packed_folder

_log = logging.getLogger(__name__)

# Packing less takes no time worth a file.
WORTH_BYTES = 16 << 20
# Those that need all weights a program has: what they left in the file is whole.
_COMPLETE = (FORWARD_METHOD, EMIT_METHOD)
_MAX_RANK = 8
# ExecuTorch's numbers of the types that contracts know.
_TYPES: dict[int, npt.DTypeLike] = {0: np.uint8, 3: np.int32, 4: np.int64, 6: np.float32, 11: np.bool_}
_NUMBERS = {np.dtype(each): number for number, each in _TYPES.items()}


class _View(ctypes.Structure):
    """A tensor as methods.cpp sees it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * _MAX_RANK),
    )


class Meta:
    """What a method says of itself.

    Args:
        num_inputs: Tensors it takes.
        num_outputs: Tensors it returns.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        self._num_inputs, self._num_outputs = num_inputs, num_outputs

    def num_inputs(self) -> int:
        """Return how many tensors it takes."""
        return self._num_inputs

    def num_outputs(self) -> int:
        """Return how many tensors it returns."""
        return self._num_outputs


class Methods:
    """A mapped program whose methods share packed weights, in a file where that is worth it.

    Args:
        path: The .pte, checked before.
        base_sha256: Of the weights; programs of equal bytes and base share a file.

    Raises:
        RuntimeError: If the runtime cannot read the program.
    """

    def __init__(self, path: Path, base_sha256: str) -> None:
        self._library = _library()
        error = ctypes.c_int()
        self._handle = self._library.prgec_methods_open(bytes(path), _WARN, ctypes.byref(error))
        if not self._handle:
            raise RuntimeError(f"loading the program failed with error {error.value:#x}")
        weakref.finalize(self, self._library.prgec_methods_close, self._handle)
        folder = packed_folder()
        if folder is not None and path.stat().st_size >= WORTH_BYTES:
            self._library.prgec_methods_keep(self._handle, bytes(folder), bytes(path), base_sha256.encode())
        self._is_complete = False

    def load_method(self, name: str) -> Method:
        """Load a method.

        Raises:
            RuntimeError: If the runtime refuses.
        """
        num_inputs, num_outputs = ctypes.c_int64(), ctypes.c_int64()
        error = self._library.prgec_methods_load(
            self._handle, name.encode(), ctypes.byref(num_inputs), ctypes.byref(num_outputs)
        )
        self._check(error, name)
        self._is_complete |= name in _COMPLETE
        if self._is_complete:
            self._library.prgec_methods_seal(self._handle)
        return Method(self, name, Meta(num_inputs.value, num_outputs.value))

    def run(self, name: str, inputs: Sequence[Any], num_outputs: int) -> list[Any]:
        """Run a loaded method on tensors and return copies of the `num_outputs` tensors it returns.

        Raises:
            RuntimeError: If the runtime reports a failure.
        """
        arrays = [each.contiguous().numpy() for each in inputs]
        views = (_View * len(arrays))(*map(_view_of, arrays))
        outputs = (_View * num_outputs)()
        self._check(self._library.prgec_methods_run(self._handle, name.encode(), views, len(arrays), outputs), name)
        return [_tensor(_array_of(each).copy()) for each in outputs]

    def attribute(self, method: str, name: str) -> Any:
        """Return a tensor over a buffer of a loaded method, for as long as this program lives.

        Raises:
            RuntimeError: If it has no such buffer.
        """
        view = _View()
        error = self._library.prgec_methods_attribute(self._handle, method.encode(), name.encode(), ctypes.byref(view))
        self._check(error, method)
        return _tensor(_array_of(view))

    def _check(self, error: int, name: str) -> None:
        if error:
            raise RuntimeError(f"method {name!r} failed with error {error:#x}")


class Method:
    """One loaded method; takes and returns tensors as those of ExecuTorch's bindings do.

    Args:
        program: Whose it is.
        name: Its name.
        meta: What it says of itself.
    """

    def __init__(self, program: Methods, name: str, meta: Meta) -> None:
        self._program, self._name, self._meta = program, name, meta

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run it."""
        return self._program.run(self._name, inputs, self._meta.num_outputs())

    def get_attribute(self, name: str) -> Any:
        """Return a tensor that aliases a buffer."""
        return self._program.attribute(self._name, name)

    def method_meta(self) -> Meta:
        """Return what it says of itself."""
        return self._meta


def _say(line: bytes) -> None:
    _log.warning("%s", line.decode(errors="replace"))


# Lives as long as the library may call it.
_WARN = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_say)


@functools.cache
def _library() -> Any:
    """The compiled library.

    Raises:
        BackendError: If it has to be built here and cannot be.
    """
    from prgec.runtime_ops.native import methods_library

    library = ctypes.CDLL(str(methods_library()))
    library.prgec_methods_open.restype = ctypes.c_void_p
    for name in ("close", "keep", "seal"):
        getattr(library, f"prgec_methods_{name}").restype = None
    handle, text, views = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(_View)
    number = ctypes.POINTER(ctypes.c_int64)
    library.prgec_methods_open.argtypes = (text, type(_WARN), ctypes.POINTER(ctypes.c_int))
    library.prgec_methods_close.argtypes = library.prgec_methods_seal.argtypes = (handle,)
    library.prgec_methods_keep.argtypes = (handle, text, text, text)
    library.prgec_methods_load.argtypes = (handle, text, number, number)
    library.prgec_methods_run.argtypes = (handle, text, views, ctypes.c_int64, views)
    library.prgec_methods_attribute.argtypes = (handle, text, text, views)
    return library


def _view_of(array: npt.NDArray[Any]) -> _View:
    sizes = (ctypes.c_int64 * _MAX_RANK)(*array.shape)
    return _View(array.ctypes.data, _NUMBERS[array.dtype], array.ndim, sizes)


def _array_of(view: _View) -> npt.NDArray[Any]:
    """An array over the memory of a view."""
    dtype, shape = np.dtype(_TYPES[view.type]), tuple(view.sizes[: view.rank])
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = memoryview((ctypes.c_char * num_bytes).from_address(view.data)) if num_bytes else memoryview(b"")
    return np.frombuffer(memory, dtype=dtype).reshape(shape)


def _tensor(array: npt.NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(array)

"""A mapped program and its methods, by ExecuTorch's runtime alone (docs/decisions/022-without-torch.md).

ExecuTorch's own bindings link against torch, whose import takes longer and more memory than most training runs need
besides; and they load a method by its name alone, where XNNPACK takes the file of its packed weights from the options
of a load and from nowhere else (docs/cache.md). Tensors come and go as arrays.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prgec.core.contract.arrays import FloatArray, IntArray
from prgec.core.contract.names import DECODE_METHOD, EMIT_METHOD, EXTEND_METHOD, FORWARD_METHOD
from prgec.core.machine.native_log import captured_stderr
from prgec.core.machine.packed_weights import packed_folder
from prgec.runtime.engines.executorch.library import WARN, Value, View, array_of, library, value_of, view_of

# Packing less takes no time worth a file.
WORTH_BYTES = 16 << 20
# Those that need all weights a program has: what they left in the file is whole.
_COMPLETE = (FORWARD_METHOD, EMIT_METHOD)


class Methods:
    """A mapped program.

    Args:
        path: The .pte, checked before.
        data: The file of weights beside it, where it has one.

    Raises:
        RuntimeError: If the runtime cannot read the program.
    """

    def __init__(self, path: Path, data: Path | None = None) -> None:
        self._library = library()
        self._path = path
        error = ctypes.c_int()
        self._handle = self._library.prgec_methods_open(
            bytes(path), None if data is None else bytes(data), WARN, ctypes.byref(error)
        )
        if not self._handle:
            raise RuntimeError(f"loading the program failed with error {error.value:#x}")
        weakref.finalize(self, _close, self._handle)
        self._is_complete = False

    def keep_packed(self, base_sha256: str) -> None:
        """Keep XNNPACK's packed weights in a file, where that is worth it; before any method is loaded that has some.

        Args:
            base_sha256: Hash of the weights; programs of equal bytes and base share a file.
        """
        folder = packed_folder()
        if folder is not None and self._path.stat().st_size >= WORTH_BYTES:
            self._library.prgec_methods_keep(self._handle, bytes(folder), bytes(self._path), base_sha256.encode())

    def has(self, name: str) -> bool:
        """Whether the program has a method of that name."""
        return bool(self._library.prgec_methods_has(self._handle, name.encode()))

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
        return Method(self, name, num_inputs.value, num_outputs.value)

    def run(self, name: str, inputs: Sequence[Any], num_outputs: int) -> list[Value]:
        """Run a loaded method on contiguous arrays and return copies of its results.

        Raises:
            RuntimeError: If the runtime reports a failure.
        """
        views = (View * len(inputs))(*map(view_of, inputs))
        outputs = (View * num_outputs)()
        self._check(self._library.prgec_methods_run(self._handle, name.encode(), views, len(inputs), outputs), name)
        return [value_of(each) for each in outputs]

    def input_shape(self, name: str, index: int) -> tuple[int, ...]:
        """Return the largest shape of an input of a loaded method.

        Raises:
            RuntimeError: If it has no such input.
        """
        view = View()
        self._check(self._library.prgec_methods_input(self._handle, name.encode(), index, ctypes.byref(view)), name)
        return view.shape

    def attribute(self, method: str, name: str) -> Any:
        """Return an array over a buffer of a loaded method, for as long as this program lives.

        Raises:
            RuntimeError: If it has no such buffer.
        """
        view = View()
        error = self._library.prgec_methods_attribute(self._handle, method.encode(), name.encode(), ctypes.byref(view))
        self._check(error, method)
        return array_of(view)

    def open_cache(self) -> None:
        """Find out what `extend`, which is loaded, keeps of what it has read.

        Raises:
            RuntimeError: If it keeps nothing.
        """
        self._check(self._library.prgec_methods_open_cache(self._handle), EXTEND_METHOD)

    def extend(self, tokens_T: IntArray, start: int) -> FloatArray:
        """Read contiguous tokens i64[T] at the positions from `start` on: logits f32[1, 1, V] after the last one.

        Raises:
            RuntimeError: If the runtime reports a failure.
        """
        view = View()
        error = self._library.prgec_methods_extend(
            self._handle, tokens_T.ctypes.data, len(tokens_T), start, ctypes.byref(view)
        )
        self._check(error, EXTEND_METHOD)
        return array_of(view).copy()

    def open_caches(self) -> None:
        """Find out what `decode`, which is loaded, keeps of what it has read.

        Raises:
            RuntimeError: If it keeps nothing.
        """
        self._check(self._library.prgec_methods_open_caches(self._handle), DECODE_METHOD)

    def fork(self, row: int, count: int) -> None:
        """Let text `row` of `decode` be the first `count` tokens that `extend` has read, whatever it was before.

        Raises:
            RuntimeError: If there is no such text, or fewer tokens were read.
        """
        self._check(self._library.prgec_methods_fork(self._handle, row, count), DECODE_METHOD)

    def decode(self, tokens_R: IntArray, starts_R: IntArray) -> FloatArray:
        """Read one token of each text, contiguous i64[R] at positions i64[R]: logits f32[1, R, V] after them.

        Raises:
            RuntimeError: If the runtime reports a failure.
        """
        view = View()
        error = self._library.prgec_methods_decode(
            self._handle, tokens_R.ctypes.data, starts_R.ctypes.data, ctypes.byref(view)
        )
        self._check(error, DECODE_METHOD)
        return array_of(view).copy()

    def forget(self) -> None:
        """Forget what `extend` has read."""
        self._library.prgec_methods_forget(self._handle)

    def _check(self, error: int, name: str) -> None:
        if error:
            raise RuntimeError(f"method {name!r} failed with error {error:#x}")


class Method:
    """One loaded method.

    Args:
        program: The program that it belongs to.
        name: Its name.
        num_inputs: Tensors it takes.
        num_outputs: Values it returns.
    """

    def __init__(self, program: Methods, name: str, num_inputs: int, num_outputs: int) -> None:
        self._program, self._name = program, name
        self.num_inputs = num_inputs
        self._num_outputs = num_outputs

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run it on contiguous arrays.

        Raises:
            RuntimeError: If the runtime reports a failure.
        """
        return self._program.run(self._name, inputs, self._num_outputs)

    def input_shape(self, index: int) -> tuple[int, ...]:
        """Return the largest shape of an input."""
        return self._program.input_shape(self._name, index)

    def open_cache(self) -> Methods:
        """Return the program, ready to read on with this method.

        Raises:
            RuntimeError: If it keeps nothing of what it has read.
        """
        (self._program.open_caches if self._name == DECODE_METHOD else self._program.open_cache)()
        return self._program

    def get_attribute(self, name: str) -> Any:
        """Return an array over a buffer.

        Raises:
            RuntimeError: If it has no such buffer.
        """
        return self._program.attribute(self._name, name)


def _close(handle: int) -> None:
    # Qualcomm's delegate writes three lines as it is taken down.
    with captured_stderr():
        library().prgec_methods_close(handle)

"""A loaded method whose delegate keeps quiet when it goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prgec.machine.native_log import captured_stderr


class QuietMethod:
    """Wraps a method of the ExecuTorch runtime; Qualcomm's delegate writes three lines to stderr as it is taken down.

    Args:
        method: The loaded method; nothing else may hold it.
    """

    def __init__(self, method: Any) -> None:
        self._method = method

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Run it."""
        return self._method(inputs)

    def get_attribute(self, name: str) -> Any:
        """Return a tensor that aliases a buffer."""
        return self._method.get_attribute(name)

    def method_meta(self) -> Any:
        """Return what the method says of itself."""
        return self._method.method_meta()

    def __del__(self) -> None:
        with captured_stderr():
            self._method = None

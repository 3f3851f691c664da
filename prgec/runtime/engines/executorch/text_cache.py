"""The methods of a program that reads texts into a cache, and writes on from there.

Letters: T tokens, R texts, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from prgec.core.contract.arrays import FloatArray, IntArray
from prgec.core.contract.names import DECODE_METHOD, EXTEND_METHOD
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.runtime import LoadMethod


class PteTextCache:
    """The cache of a .pte. Its methods are loaded when they are first called: most programs never write.

    Args:
        path: File of the program, for messages.
        load_method: Loads a method by its name.
        execute: Calls a loaded method, and reports its failure.
    """

    def __init__(self, path: Path, load_method: LoadMethod, execute: Callable[..., Any]) -> None:
        self._path, self._execute = path, execute
        self._load_extend = functools.cache(lambda: self._opened(load_method(EXTEND_METHOD, None)))
        self._load_decode = functools.cache(lambda: self._opened(load_method(DECODE_METHOD, None)))

    def extend(self, tokens_T: IntArray, start: int) -> FloatArray:
        """Read tokens at the positions from `start` on, after those in the cache.

        Args:
            tokens_T: i64[T], at most `EXTEND_CHUNK`.
            start: Position of the first.

        Returns:
            f32[V], the logits after the last one.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        tokens = np.ascontiguousarray(tokens_T, dtype=np.int64)
        result: FloatArray = self._execute(self._load_extend().extend, tokens, start)[0, 0]
        return result

    def fork(self, row: int, count: int) -> None:
        """Let text `row` of `decode` be the first `count` tokens that `extend` has read, whatever it was before.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        self._load_extend()
        self._execute(self._load_decode().fork, row, count)

    def decode(self, tokens_R: IntArray, starts_R: IntArray) -> FloatArray:
        """Read one token of each of R texts at a position of its own.

        Args:
            tokens_R: i64[R].
            starts_R: i64[R], the number of tokens of each text that were read before.

        Returns:
            f32[R, V], the logits after them.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        tokens, starts = (np.ascontiguousarray(each, dtype=np.int64) for each in (tokens_R, starts_R))
        result: FloatArray = self._execute(self._load_decode().decode, tokens, starts)[0]
        return result

    def clear(self) -> None:
        """Clear what `extend` has read. A NaN left in it would poison every attention sum, even at weight 0."""
        self._load_extend().forget()

    def _opened(self, method: Any) -> Any:
        try:
            return method.open_cache()
        except RuntimeError as error:
            raise ProgramError(
                "the program keeps its cache in an old format", where=self._path, hint="compile it again"
            ) from error

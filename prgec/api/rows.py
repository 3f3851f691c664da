"""Rows as a program reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from prgec.api.inputs import Data, data_file
from prgec.api.program import Program
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import encode_items
from prgec.core.data.row import Row
from prgec.core.data.show import marked_row


class Rows(Sequence[Row]):
    """Encoded rows, which can be shown as text.

    Args:
        rows: The rows.
        tokenizer: Tokenizer that made them.
    """

    def __init__(self, rows: Sequence[Row], tokenizer: Tokenizer) -> None:
        self._rows, self._tokenizer = rows, tokenizer

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> Row | Rows:
        return Rows(self._rows[index], self._tokenizer) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def show(self, count: int = 2) -> str:
        """Return the first rows as text, with the learned tokens between marks."""
        return "\n\n".join(
            marked_row(row, lambda ids: self._tokenizer.decode(ids, skip_special_tokens=False))
            for row in self._rows[:count]
        )


def read_rows(data: Data, program: Program, *, task: str = "auto") -> Rows:
    """Encode data as rows of a program.

    Args:
        data: A data file in any format of docs/tasks.md, or rows: a list of dicts, a `datasets.Dataset`.
        program: Program to encode for.
        task: Task of the data; `auto` finds it from the fields of the rows.

    Returns:
        Rows of at most T tokens and K label positions.

    Raises:
        DataError: If the data are damaged, or do not fit the program.
        UsageError: If there is no such task.

    Example:
        >>> rows = prgec.read_rows([{"prompt": "2 + 2 =", "completion": " 4"}], program)  # doctest: +SKIP
        >>> print(rows.show())  # doctest: +SKIP
        2 + 2 =⟦ 4⟧
    """
    with data_file(data) as path:
        dataset = load_dataset(path, task).choosing_from(program.manifest.answers)
        return Rows(encode_items(dataset.examples, program.tokenizer, program.manifest), program.tokenizer)

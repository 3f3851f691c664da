"""The items of a data file, read again from packed bytes each time they are used."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import overload

from prgec.core.data.kept import Kept
from prgec.core.data.task import Example, Item


class Items(Sequence[Item]):
    """Items, or some of them in another order.

    Args:
        items: All items.
        order: Which of them, in which order; None for all.
        ends: Whether answers learn their end; None for as the items say.
    """

    def __init__(self, items: Sequence[Item], order: Sequence[int] | None = None, ends: bool | None = None) -> None:
        self._items: Sequence[Item] = items
        self._order, self._ends = order, ends
        if isinstance(items, Items):
            # Items of items read what these do.
            self._items = items._items
            self._order = items._order if order is None else [items._at(index) for index in order]
            self._ends = items._ends if ends is None else ends

    @classmethod
    def of(cls, items: Iterable[Item]) -> Items:
        """Return items as packed bytes, each taken once."""
        return cls(Kept(pickle.dumps, pickle.loads, items))

    def __len__(self) -> int:
        return len(self._items if self._order is None else self._order)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Items: ...
    def __getitem__(self, index: int | slice) -> Item | Items:
        if isinstance(index, slice):
            return Items(self, range(*index.indices(len(self))))
        item = self._items[self._at(index)]
        is_right = not isinstance(item, Example) or self._ends in (None, item.ends) or item.completion is None
        return item if is_right else replace(item, ends=self._ends)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def _at(self, index: int) -> int:
        return index if self._order is None else self._order[index]

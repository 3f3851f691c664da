"""The reference backend: ExecuTorch's own CPU kernels, no delegate."""

from __future__ import annotations

from typing import ClassVar

from prgec.backends import IN_PLACE
from prgec.backends.base import Backend


class PortableBackend(Backend):
    """Slow, small and everywhere: the oracle the others are compared with."""

    name: ClassVar[str] = "portable"
    methods: ClassVar[frozenset[str]] = frozenset({"prge", "exact", "shortcut", "side"})
    default_method: ClassVar[str] = "exact"
    dynamic_seq_len: ClassVar[bool] = True
    recomputes: ClassVar[bool] = True
    schemes: ClassVar[frozenset[str]] = frozenset({"8da8w", "8da4w"})
    embedding_bits: ClassVar[frozenset[int]] = frozenset({8, 4})
    # The op table leaves attention to these passes, as it is written in one way then.
    route: ClassVar[str] = IN_PLACE
    legality: ClassVar[frozenset[str]] = frozenset({"lower-sdpa", "lower-eager-attention"})

    def check(self) -> None:
        """ExecuTorch itself is all it needs."""

    def load_runtime(self) -> None:
        """Nothing: it is the kernels."""

"""The options of a benchmark: a matrix of sizes and schemes, and the variants of each cell. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from prgec.compiler.check import check_options
from prgec.compiler.options import QUANTIZE_SCHEMES, CompileOptions
from prgec.errors import UsageError
from prgec.lab.bench.variants import Variant, find_variant


@dataclass(frozen=True)
class Cell:
    """One point of the matrix; all its variants run interleaved.

    Attributes:
        quantize: Scheme of the frozen layers.
        q: Queries a step.
        batch_size: B, examples a step.
        seq_len: T; every row is full.
    """

    quantize: str
    q: int
    batch_size: int
    seq_len: int

    def __str__(self) -> str:
        """Return the cell as tables and plots label it."""
        return f"{self.quantize} q={self.q} B={self.batch_size} T={self.seq_len}"


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """One benchmark.

    Attributes:
        model: Checkpoint folder, alias or hub id.
        backend: Row of the backend table.
        q: Values of q.
        batch_size: Values of B.
        seq_len: Values of T.
        quantize: Schemes of the frozen layers.
        quantize_embedding: Bits of the embedding table, 0 for f32.
        layers: Blocks to train, as `prgec compile` takes them.
        variants: Names of variants, in the order they take turns.
        repeats: Timed steps of each variant.
        out: Folder for results and programs; None keeps neither.
    """

    model: str
    backend: str = "xnnpack"
    q: tuple[int, ...] = (4,)
    batch_size: tuple[int, ...] = (1,)
    seq_len: tuple[int, ...] = (64,)
    quantize: tuple[str, ...] = ("none",)
    quantize_embedding: int = 0
    layers: tuple[str, ...] = CompileOptions.layers
    variants: tuple[str, ...] = ("prgec", "paper", "sequential", "inference")
    repeats: int = 10
    out: Path | None = None

    def cells(self) -> list[Cell]:
        """All points of the matrix, T changing fastest."""
        return [Cell(*point) for point in product(self.quantize, self.q, self.batch_size, self.seq_len)]

    def chosen_variants(self) -> list[Variant]:
        """Rows of the variant table, in the requested order."""
        return [find_variant(name) for name in self.variants]

    def compile_options(self, cell: Cell, output: Path) -> CompileOptions:
        """Options of the default training program of a cell."""
        return CompileOptions(
            model=self.model,
            output=output,
            backend=self.backend,
            q=cell.q,
            batch_size=cell.batch_size,
            seq_len=cell.seq_len,
            quantize=cell.quantize,
            quantize_embedding=self.quantize_embedding,
            layers=self.layers,
        )

    def check(self) -> None:
        """Check everything that needs no model.

        Raises:
            UsageError: On an impossible value, or an empty or repeating list.
        """
        if self.repeats < 1:
            raise UsageError(f"--repeats is {self.repeats}; expected at least 1")
        lists = {
            "--q": self.q,
            "--batch-size": self.batch_size,
            "--seq-len": self.seq_len,
            "--quantize": self.quantize,
            "--variants": self.variants,
        }
        for flag, values in lists.items():
            if not values:
                raise UsageError(f"{flag} is empty")
            if len(set(values)) != len(values):
                raise UsageError(f"{flag} names a value twice: {','.join(map(str, values))}")
        for scheme in self.quantize:
            if scheme not in QUANTIZE_SCHEMES:
                raise UsageError(f"--quantize is {scheme!r}; expected one of {', '.join(QUANTIZE_SCHEMES)}")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise UsageError("--out is a file; expected a folder", where=self.out)
        backends = {variant.backend or self.backend for variant in self.chosen_variants()}
        for cell, backend in product(self.cells(), sorted(backends)):
            check_options(replace(self.compile_options(cell, Path("model.pte")), backend=backend))

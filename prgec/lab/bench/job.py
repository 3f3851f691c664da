"""The work of one variant in one cell, in a form for another process. Imports nothing heavy."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from prgec.lab.bench.options import Cell
from prgec.lab.bench.variants import Variant, find_variant

# Values of a run that is going well; none of them changes the work.
EPS, LR = 1e-2, 1e-4


@dataclass(frozen=True, kw_only=True)
class Job:
    """A variant, ready to run.

    Attributes:
        variant: Row of the variant table.
        cell: Sizes of the step.
        backend: Row of the backend table the program was lowered for.
        model: Checkpoint, as the user named it.
        vocab_size: V; tokens are drawn below it.
        num_labels: K.
        layers: Blocks that train.
        program: The .pte; None where PyTorch runs the model.
    """

    variant: Variant
    cell: Cell
    backend: str
    model: str
    vocab_size: int
    num_labels: int
    layers: tuple[str, ...]
    program: Path | None

    def to_json(self) -> str:
        """Serialise for the command line of another process."""
        program = str(self.program) if self.program is not None else None
        return json.dumps(
            {
                "variant": self.variant.name,
                "cell": asdict(self.cell),
                "backend": self.backend,
                "model": self.model,
                "vocab_size": self.vocab_size,
                "num_labels": self.num_labels,
                "layers": self.layers,
                "program": program,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Parse what `to_json` wrote."""
        raw = json.loads(text)
        program = Path(raw["program"]) if raw["program"] is not None else None
        variant, cell, layers = find_variant(raw["variant"]), Cell(**raw["cell"]), tuple(raw["layers"])
        return cls(**{**raw, "variant": variant, "cell": cell, "layers": layers, "program": program})

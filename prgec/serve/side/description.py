"""The description of a side network's program; stored as JSON in the constant method `prgec_side_network`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from prgec.core.formats.shards import ShardShape
from prgec.core.formats.side_network import NORMS
from prgec.errors import ProgramError

_MAX_ROWS = 1 << 12


@dataclass(frozen=True, kw_only=True)
class SideDescription:
    """A side network as a program.

    Attributes:
        shape: Shape of the shards it was learnt from.
        norm: Normalisation of activations.
        rank: r.
        batch_size: Rows a call.
        backend: Backend it was lowered for.
        sha256: Hash of the network's file.
        has_checksums: Whether a table of checksums follows the program.
    """

    shape: ShardShape
    norm: str
    rank: int
    batch_size: int
    backend: str
    sha256: str
    has_checksums: bool = True

    def to_json(self) -> str:
        """Serialise with sorted keys."""
        return json.dumps({**asdict(self), "shape": self.shape.to_metadata()}, sort_keys=True)

    @classmethod
    def from_json(cls, text: object, path: Path) -> SideDescription:
        """Parse and check it.

        Raises:
            ProgramError: If it is none.
        """
        bad = ProgramError("the program of the side network is damaged", where=path, hint="build it again")
        try:
            raw = json.loads(str(text))
            shape = ShardShape.from_metadata(raw.pop("shape"), path)
            found = cls(shape=shape, **raw)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise bad from error
        counts = (found.rank, found.batch_size)
        texts = (found.norm, found.backend, found.sha256)
        if any(type(count) is not int or not 1 <= count <= 1 << 16 for count in counts):
            raise bad
        if type(found.has_checksums) is not bool:
            raise bad
        if any(not isinstance(each, str) for each in texts) or found.norm not in NORMS or found.batch_size > _MAX_ROWS:
            raise bad
        return found

"""A program that emits what a side network learns from: the outputs of its blocks at the label positions.

Letters: B rows a call, T tokens, L blocks, K label positions, D width, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prgec.core.contract.arrays import FloatArray, IntArray
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import EMIT_INPUTS, EMIT_METHOD
from prgec.core.contract.tokenizer import Tokenizer
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.runtime import (
    check_signature,
    int_arrays,
    keep_packed,
    load_method_of,
    load_runtime,
)
from prgec.runtime.engines.executorch.verified import open_verified


class EmittingProgram:
    """A .pte of `prgec compile --method side` (contract 3), loaded.

    Attributes:
        path: File it was opened from.
        manifest: Manifest of the program.
        tokenizer: The tokenizer it carries.
    """

    def __init__(self, path: Path, manifest: Manifest, tokenizer: Tokenizer, method: Any) -> None:
        self.path = path
        self.manifest = manifest
        self.tokenizer = tokenizer
        self._emit = method

    def emit(self, tokens_BT: IntArray, label_pos_BK: IntArray) -> tuple[FloatArray, FloatArray]:
        """Run the model once over B rows.

        Args:
            tokens_BT: i64[B, T], right-padded.
            label_pos_BK: i64[B, K].

        Returns:
            The blocks' outputs f32[B, L, K, D] and the logits f32[B, K, V], both at the label positions.

        Raises:
            ProgramError: If the runtime reports a failure.
        """
        try:
            acts_BLKD, logits_BKV = self._emit(int_arrays(tokens_BT, label_pos_BK))
        except RuntimeError as error:
            raise ProgramError(f"the program failed to run: {error}", where=self.path) from error
        return acts_BLKD, logits_BKV


def open_emitting(path: Path, *, verify: bool = True) -> EmittingProgram:
    """Map a .pte of `prgec compile --method side` and load its method.

    Args:
        path: The .pte.
        verify: Whether to compare its bytes with its checksums, before the runtime sees any of them.

    Raises:
        ProgramError: If the file is missing, damaged, or a program of another kind, or its backend does not run here.
        BackendError: If what the backend needs cannot be loaded.
    """
    raw, manifest, tokenizer = open_verified(path, verify=verify)
    if not manifest.emits:
        raise ProgramError(
            f"the program trains by --method {manifest.method} and emits no activations",
            where=path,
            hint="compile the backbone with --method side",
        )
    load_runtime(manifest.backend)
    keep_packed(raw, manifest)
    method = load_method_of(raw, EMIT_METHOD, path, manifest.backend)
    check_signature(method, EMIT_INPUTS, path)
    return EmittingProgram(path, manifest, tokenizer, method)

"""A trained adapter on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prgec.core.contract.arrays import State
from prgec.core.formats.adapter import read_adapter
from prgec.core.formats.run_folder import ADAPTER_NAME
from prgec.core.machine.files import check_free, write_atomic

_EXPORTS = {"peft": "peft", "gguf": "gguf-lora"}
_FORMATS = ("prgec", *_EXPORTS)


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """The adapter of a run.

    Attributes:
        path: A run folder, or an `adapter.safetensors`.
        program: The .pte that it was trained with; needed where no `run.json` is beside it.

    Example:
        >>> result.adapter.save("my-adapter", format="peft")  # doctest: +SKIP
    """

    path: Path
    program: Path | None = None

    @property
    def file(self) -> Path:
        """The file with the tensors."""
        return self.path / ADAPTER_NAME if self.path.is_dir() else self.path

    def tensors(self) -> State:
        """Return B of every site by name: f32[r, O].

        Raises:
            ProgramError: If the file is missing or damaged.
        """
        return read_adapter(self.file)[0]

    def save(self, path: str | Path, *, format: str = "prgec", base: str | None = None, force: bool = False) -> Path:
        """Write the adapter for this or another tool, and return where it is.

        Args:
            path: File (`prgec`, `gguf`) or folder (`peft`) to write.
            format: `prgec`, `peft`, or `gguf` for llama.cpp.
            base: Checkpoint that the program was compiled from; None for the one that it names.
            force: Whether a file of format `prgec` is replaced.

        Raises:
            PrgecError: If the output exists, or the adapter or its base cannot be read.
            ValueError: If there is no such format.
        """
        target = Path(path)
        if format not in _FORMATS:
            raise ValueError(f"format is {format!r}; expected one of {', '.join(_FORMATS)}")
        if format == "prgec":
            check_free(target, force=force)
            write_atomic(target, self.file.read_bytes())
            return target
        return self._export(target, _EXPORTS[format], base)

    def merge(self, path: str | Path, *, base: str | None = None) -> Path:
        """Write the checkpoint with the adapter merged into its weights, in the Hugging Face layout.

        Args:
            path: Folder to write.
            base: Checkpoint that the program was compiled from; None for the one that it names.

        Raises:
            PrgecError: If the folder exists, or the base is missing or another one.
        """
        return self._export(Path(path), "merged", base)

    def _export(self, target: Path, kind: str, base: str | None) -> Path:
        from prgec.compiler.export import export_adapter, open_trained

        export_adapter(open_trained(self.path, self.program), kind, target, base)
        return target

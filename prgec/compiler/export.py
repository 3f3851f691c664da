"""A trained adapter for other tools: PEFT, a merged Hugging Face checkpoint, llama.cpp.

Letters: r rank, D and O widths of a layer's input and output.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prgec.compiler.measured_rows import RowsFile
from prgec.core.contract.inspection import inspect_program
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import FROZEN_SUFFIX
from prgec.core.data.tasks import AUTO_TASK
from prgec.core.formats.adapter import adapter_metadata, read_adapter
from prgec.core.formats.lora_a import frozen_a
from prgec.core.formats.peft import PeftAdapter, write_peft
from prgec.core.formats.run_folder import ADAPTER_NAME, SUMMARY_NAME
from prgec.core.machine.extras import check_compiler
from prgec.errors import PrgecError, ProgramError, UsageError

if TYPE_CHECKING:
    from prgec.compiler.frontend.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

PEFT, MERGED, GGUF_LORA = "peft", "merged", "gguf-lora"
FORMATS = (PEFT, MERGED, GGUF_LORA)
# Weights and their index are written anew; everything else of a checkpoint is kept as it is.
_REWRITTEN = (".safetensors", ".bin", ".index.json", ".pth", ".gguf")


@dataclass(frozen=True)
class Trained:
    """An adapter together with what it belongs to.

    Attributes:
        manifest: Manifest of the program it was trained with.
        adapter: A and B of every site.
    """

    manifest: Manifest
    adapter: PeftAdapter


def open_trained(run: Path, program: Path | None = None) -> Trained:
    """Read an adapter with its A.

    Args:
        run: A run folder, or an `adapter.safetensors`.
        program: The .pte it was trained with; needed where no run.json says what that was.

    Raises:
        ProgramError: If the adapter or the program is missing, damaged, or belongs to another.
        UsageError: If nothing says what the adapter belongs to.
    """
    path = run / ADAPTER_NAME if run.is_dir() else run
    tensors, metadata = read_adapter(path)
    manifest = inspect_program(program).manifest if program else _manifest_of_run(path.parent)
    expected = adapter_metadata(manifest)
    for key in expected:
        if metadata.get(key) != expected[key] and key != "model":
            raise ProgramError(
                f"the adapter's {key} is {metadata.get(key)}, the program's is {expected[key]}", where=path
            )
    missing = [site.state_name for site in manifest.sites if site.state_name not in tensors]
    if missing:
        raise ProgramError(f"the adapter lacks {missing[0]}", where=path)
    matrices = {**frozen_a(manifest, tensors), **{site.state_name: tensors[site.state_name] for site in manifest.sites}}
    return Trained(manifest, PeftAdapter(manifest.rank, manifest.alpha, matrices, expected))


@dataclass(frozen=True)
class MergedLosses:
    """Mean losses of a few rows.

    Attributes:
        num_rows: Rows.
        data: File that they are the first ones of.
        before: By the base.
        after: By the checkpoint with the adapter in it.
    """

    num_rows: int
    data: Path
    before: float
    after: float


def export_adapter(
    trained: Trained, kind: str, output: Path, base: str | None, data: RowsFile | None = None
) -> MergedLosses | None:
    """Write an adapter in another format.

    Args:
        trained: Adapter to write.
        kind: Row of `FORMATS`.
        output: Folder (`peft`, `merged`) or file (`gguf-lora`) to write.
        base: Checkpoint it belongs to, as `prgec compile` takes it; None for what the manifest names.
        data: Rows to evaluate before and after a merge; None for none.

    Returns:
        The losses of these rows.

    Raises:
        PrgecError: A fitting subclass if the output exists, or the base model is missing or another one.
    """
    if output.exists() and (output.is_file() or any(output.iterdir())):
        raise UsageError("the output exists", where=output, hint="name another one with -o")
    if kind == PEFT:
        write_peft(output, trained.adapter, base or trained.manifest.model)
        return None
    from prgec.compiler.frontend.checkpoint import find_checkpoint

    checkpoint = find_checkpoint(base or trained.manifest.model)
    if kind == MERGED:
        return _write_merged(trained, checkpoint, output, data)
    from prgec.core.formats.gguf import write_gguf_lora

    write_gguf_lora(output, trained.adapter, checkpoint.config)
    return None


def _write_merged(trained: Trained, checkpoint: Checkpoint, output: Path, data: RowsFile | None) -> MergedLosses | None:
    """Write the checkpoint with `alpha / r * B^T A` added to the weights, in f32."""
    check_compiler()
    import torch

    from prgec.compiler.frontend.model import load_model, weights_sha256
    from prgec.compiler.merge_check import sample_of

    model: Any = load_model(checkpoint)
    if weights_sha256(model) != trained.manifest.base_sha256:
        raise ProgramError(
            "the adapter belongs to other weights than this checkpoint's",
            where=checkpoint.path,
            hint="name the checkpoint the program was compiled from with --base",
        )
    sample = None
    if data is not None:
        try:
            sample = sample_of(data, trained.manifest, checkpoint, model)
        except PrgecError as error:
            if data.is_named:
                raise
            logger.warning("no rows were evaluated: %s", error)
    before = sample.loss(model) if sample is not None else 0.0
    adapter = trained.adapter
    with torch.no_grad():
        for site in trained.manifest.sites:
            module = model.get_submodule(site.name)
            a_RD = torch.from_numpy(adapter.tensors[site.name + FROZEN_SUFFIX])
            b_RO = torch.from_numpy(adapter.tensors[site.state_name])
            delta_OD = adapter.alpha / adapter.rank * (b_RO.T @ a_RD)
            # GPT-2 keeps its weights the other way round.
            is_turned = type(module).__name__ == "Conv1D"
            module.weight.add_(delta_OD.T if is_turned else delta_OD)
    output.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(checkpoint, output)
    model.save_pretrained(output)
    if sample is None or data is None:
        return None
    return MergedLosses(len(sample.rows), data.path, before, sample.loss(model))


def _write_tokenizer(checkpoint: Checkpoint, output: Path) -> None:
    """Write what belongs to a checkpoint besides its weights."""
    if checkpoint.is_gguf:
        from prgec.compiler.frontend.tokenizer import load_tokenizer

        load_tokenizer(checkpoint.path).save_pretrained(output)
        return
    for path in checkpoint.path.iterdir():
        if path.is_file() and not path.name.endswith(_REWRITTEN):
            shutil.copyfile(path, output / path.name)


def rows_of_run(run: Path, data: Path | None) -> RowsFile | None:
    """Return the rows to evaluate: of a file that is named, else the run's own where they still are.

    Args:
        run: A run folder, or an adapter in one.
        data: A file that is named.
    """
    options = _summary_of(run if run.is_dir() else run.parent).get("options")
    options = options if isinstance(options, dict) else {}
    task, columns = str(options.get("task") or AUTO_TASK), tuple(map(str, options.get("columns") or ()))
    if data is not None:
        return RowsFile(data, task, columns, is_named=True)
    paths = (Path(str(options[name])) for name in ("eval_data", "data") if options.get(name))
    return next((RowsFile(path, task, columns) for path in paths if path.exists()), None)


def _summary_of(folder: Path) -> Mapping[str, Any]:
    try:
        summary = json.loads((folder / SUMMARY_NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _manifest_of_run(folder: Path) -> Manifest:
    summary = _summary_of(folder)
    if "manifest" not in summary:
        raise UsageError("the adapter does not name its program", where=folder, hint="name the .pte with --program")
    return Manifest.from_json(json.dumps(summary["manifest"]))

"""Builds the graphs of a .pte again, from the checkpoint it was compiled from, and runs them in PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prgec.compiler.compile import Graphs, build_graphs
from prgec.compiler.options import CompileOptions
from prgec.core.contract.manifest import Manifest
from prgec.errors import ProgramError, UsageError
from prgec.lab.torch.program import TorchProgram
from prgec.runtime.engines.executorch.runtime import check_trains, manifest_of

# By who reads the state how.
_CANNOT_REBUILD = {"outputs": "keeps its state to itself", "inputs": "leaves its state to the host"}


def rebuild(path: Path, base: str | None = None, *, device: str = "cpu", compiled: bool = False) -> TorchProgram:
    """Build the graphs of a .pte again, from the checkpoint it was compiled from.

    Args:
        path: The .pte; only what it says of itself is read.
        base: The checkpoint; where None, what the .pte was compiled from by its own account.
        device: Where to run.
        compiled: Whether to use `torch.compile`.

    Raises:
        ProgramError: If the checkpoint's weights are not those of the .pte, or the graph does not come out alike.
        CheckpointError: If the checkpoint cannot be found or read.
    """
    expected = manifest_of(path)
    check_trains(expected, path)
    what = _CANNOT_REBUILD.get(expected.state_access, "has A matrices of its own" if expected.a_sha256 else "")
    if what:
        raise UsageError(
            f"engine torch cannot rebuild a program that {what}", where=path, hint="run it with --engine executorch"
        )
    graphs = build_graphs(_options_of(expected, base or expected.model))
    found = graphs.manifest
    if found.base_sha256 != expected.base_sha256:
        raise ProgramError(
            f"the weights of {base or expected.model} are not those the program was compiled from",
            where=path,
            hint="name its checkpoint with --base",
        )
    for name in ("q", "batch_size", "sites", "state", "prefix", "alpha", "rank", "a_seed"):
        if getattr(found, name) != getattr(expected, name):
            raise ProgramError(
                f"this prgec makes another graph of that checkpoint: its {name} differs",
                where=path,
                hint="compile the program again",
            )
    return TorchProgram(
        # Nobody asks this engine for text in a hurry.
        Graphs(
            methods=graphs.methods,
            manifest=replace(expected, context=0),
            tokenizer=graphs.tokenizer,
            passes=graphs.passes,
        ),
        path,
        device=device,
        compiled=compiled,
    )


def _options_of(manifest: Manifest, model: str) -> CompileOptions:
    """Return options that lead to the manifest's graph; its pipeline stands for all that passes decide."""
    return CompileOptions(
        model=model,
        output=Path("unused.pte"),
        # Has no needs of its own; legality passes are in the pipeline.
        backend="portable",
        q=manifest.q,
        batch_size=manifest.batch_size,
        seq_len=manifest.seq_len,
        num_labels=manifest.num_labels,
        method=manifest.method,
        optimizer=manifest.optimizer or "norm",
        prefix="method" if manifest.prefix == "method" else "none",
        passes=manifest.pipeline,
        generate=manifest.generate,
        static=not manifest.dynamic_seq_len,
    )

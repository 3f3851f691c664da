"""Compile with the A matrices of an existing LoRA adapter, so that training goes on from it."""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from prgec.compile.options import CompileOptions
from prgec.contract.arrays import State
from prgec.contract.manifest import Site
from prgec.contract.names import LORA_A_METHOD
from prgec.errors import InternalError, UsageError
from prgec.formats.lora_a import a_sha256
from prgec.formats.peft import PeftAdapter
from prgec.passes.program import GraphProgram
from prgec.passes.rewrite import Rewriter
from prgec.passes.sites import a_name


def options_for(options: CompileOptions, adapter: PeftAdapter) -> CompileOptions:
    """Return options that train the adapter's layers at its rank and alpha."""
    return replace(
        options, targets=tuple(map(re.escape, adapter.sites)), layers=("all",), rank=adapter.rank, alpha=adapter.alpha
    )


def give_a(program: GraphProgram, sites: tuple[Site, ...], adapter: PeftAdapter) -> State:
    """Put the adapter's A into the finished graph in place of the drawn one.

    Args:
        program: Result of the pass pipeline, before it is split into methods.
        sites: Its trained layers.
        adapter: Whose A to use.

    Returns:
        The A of every site, f32[r, D] by `<site>.lora_A`: what the program must carry.

    Raises:
        UsageError: If a layer of the adapter could not be trained, or has other widths.
    """
    missing = sorted(set(adapter.sites) - {site.name for site in sites})
    if missing:
        raise UsageError(f"the adapter's layer {missing[0]} is no site of this model")
    rewriter = Rewriter(program, "give-a")
    given: State = {}
    for site in sites:
        name = a_name(site.name)
        matrix = adapter.tensors[name]
        if matrix.shape != (adapter.rank, site.in_features):
            raise UsageError(f"the adapter's {name} is {list(matrix.shape)}; the layer reads {site.in_features}")
        drawn = program.module.get_buffer(name)
        if drawn.dtype != torch.float32 or tuple(drawn.shape) != matrix.shape:
            raise InternalError(f"{name} is {drawn.dtype}{list(drawn.shape)} in the finished graph")
        # The graph holds A times alpha / r (inject-lora-fa).
        rewriter.overwrite(name, torch.from_numpy(matrix) * (adapter.alpha / adapter.rank))
        given[name] = matrix
    program.finish()
    return given


def a_constants(given: State) -> dict[str, torch.Tensor]:
    """Return the constant method that carries the matrices; none where they follow from the seed."""
    if not given:
        return {}
    from safetensors.numpy import save

    return {LORA_A_METHOD: torch.frombuffer(bytearray(save(given)), dtype=torch.uint8)}


def hash_of(given: State) -> str:
    """Return the manifest's `a_sha256`; empty where A follows from the seed."""
    return a_sha256(given) if given else ""

"""Compile with A matrices that are not drawn: those of a LoRA adapter, to go on from it, or calibrated ones."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace

import torch

from prgec.compiler.calibrate import calibrated_a
from prgec.compiler.options import CompileOptions
from prgec.compiler.progress import Part
from prgec.compiler.readings import prompts_of, readings_of
from prgec.core.contract.arrays import State
from prgec.core.contract.manifest import Site
from prgec.core.contract.names import LORA_A_METHOD
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.formats.lora_a import a_sha256
from prgec.core.formats.peft import PeftAdapter
from prgec.errors import UsageError
from prgec.passes.emit_activations import EmitActivations
from prgec.passes.infra import Pass
from prgec.passes.inject_lora_fa import InjectLoraFa
from prgec.passes.pipeline import dump_to, run_pipeline
from prgec.passes.program import GraphProgram
from prgec.passes.quantize_base import QuantizeBase
from prgec.passes.record import PassRecord
from prgec.passes.rewrite import Rewriter
from prgec.passes.roundings import reads_inputs
from prgec.passes.sites import a_name, sites_of


def options_for(options: CompileOptions, adapter: PeftAdapter) -> CompileOptions:
    """Return options that train the adapter's layers at its rank and alpha."""
    return replace(
        options, targets=tuple(map(re.escape, adapter.sites)), layers=("all",), rank=adapter.rank, alpha=adapter.alpha
    )


def a_of_adapter(adapter: PeftAdapter, sites: tuple[Site, ...]) -> State:
    """Return the adapter's A of every site, f32[r, D] by `<site>.lora_A`.

    Raises:
        UsageError: If a layer of the adapter could not be trained, or has other widths.
    """
    missing = sorted(set(adapter.sites) - {site.name for site in sites})
    if missing:
        raise UsageError(f"the adapter's layer {missing[0]} is not a site of this model")
    given: State = {}
    for site in sites:
        name = a_name(site.name)
        given[name] = matrix = adapter.tensors[name]
        if matrix.shape != (adapter.rank, site.in_features):
            raise UsageError(f"the adapter's {name} is {list(matrix.shape)}; the layer reads {site.in_features}")
    return given


def give_a(program: GraphProgram, given: State, branch: InjectLoraFa) -> None:
    """Put A matrices into a graph in place of the drawn ones, before any other pass makes something of these.

    Args:
        program: The program after `branch`.
        given: A of every site, by name.
        branch: The pass that injected the sites.
    """
    rewriter = Rewriter(program, "give-a")
    for name, matrix in given.items():
        # The graph holds A times alpha / r.
        rewriter.overwrite(name, torch.from_numpy(matrix) * (branch.alpha / branch.rank))
    program.finish()


def prompts_for(options: CompileOptions, passes: Sequence[Pass], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the prompts by which weights are rounded or A is calibrated; none where data decide neither."""
    is_needed = options.is_calibrated or (_rounds(passes) and bool(options.data))
    return prompts_of(options, tokenizer) if is_needed else []


def hash_of_prompts(prompts: Sequence[Sequence[int]]) -> str:
    """Return the hash that a manifest names prompts by; empty for none."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest() if prompts else ""


def _rounds(passes: Sequence[Pass]) -> bool:
    return any(isinstance(each, QuantizeBase) and reads_inputs(each.rounding) for each in passes)


def run_giving_a(
    program: GraphProgram,
    passes: Sequence[Pass],
    options: CompileOptions,
    adapter: PeftAdapter | None,
    prompts: Sequence[Sequence[int]],
    part: Part,
) -> tuple[State, list[PassRecord]]:
    """Run a pipeline; return the A matrices that were given instead of drawn, and what each pass did."""
    given: State = {}
    needs_readings = bool(prompts) and _rounds(passes)
    dump = dump_to(options.dump_passes) if options.dump_passes else None

    def callback(number: int, each: Pass, program: GraphProgram, record: PassRecord) -> None:
        if isinstance(each, InjectLoraFa):
            if adapter is not None:
                given.update(a_of_adapter(adapter, sites_of(program)))
            elif options.is_calibrated:
                given.update(calibrated_a(program, prompts, each.rank))
            give_a(program, given, each)
        # Before anything is injected or emitted, which side-tuning does without injecting.
        if needs_readings and number < len(passes) and isinstance(passes[number], InjectLoraFa | EmitActivations):
            program.activations = readings_of(program, prompts)
        if dump is not None:
            dump(number, each, program, record)
        if number < len(passes):
            part(number, len(passes), f"{passes[number].name}, {len(program.graph.nodes):,} nodes")

    if passes:
        part(0, len(passes), f"{passes[0].name}, {len(program.graph.nodes):,} nodes")
    return given, run_pipeline(program, passes, callback)


def a_constants(given: State) -> dict[str, torch.Tensor]:
    """Return the constant method that carries the matrices; none where they follow from the seed."""
    if not given:
        return {}
    from safetensors.numpy import save

    return {LORA_A_METHOD: torch.frombuffer(bytearray(save(given)), dtype=torch.uint8)}


def hash_of(given: State) -> str:
    """Return the manifest's `a_sha256`; empty where A follows from the seed."""
    return a_sha256(given) if given else ""

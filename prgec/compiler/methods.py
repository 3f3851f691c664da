"""The methods of a program, cut from the graph that the passes have finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prgec.compiler.fingerprint import prefix_sha256
from prgec.compiler.options import CompileOptions
from prgec.core.contract.manifest import Manifest
from prgec.core.contract.names import (
    APPLY_METHOD,
    EMIT_METHOD,
    EVALUATE_METHOD,
    FORWARD_METHOD,
    HIDDEN_INPUT,
    NEXT_TOKENS_METHOD,
    PREFIX_METHOD,
    SIDE,
)
from prgec.errors import UsageError
from prgec.passes.extract_apply import extract_apply
from prgec.passes.extract_emit import emitted_sizes, extract_emit
from prgec.passes.extract_evaluate import extract_evaluate
from prgec.passes.extract_next_tokens import extract_next_tokens
from prgec.passes.extract_prefix import extract_prefix, find_shared_prefix
from prgec.passes.infra import Pass
from prgec.passes.program import GraphProgram


def contract_methods(program: GraphProgram, options: CompileOptions, state_access: str) -> dict[str, GraphProgram]:
    """Split the finished graph into the methods of the contract; there is one where methods cannot share buffers.

    Args:
        program: The graph after all passes.
        options: Options of the compilation.
        state_access: How a host reads the state (field of the manifest).

    Raises:
        UsageError: If the options want a method that the graph cannot have.
    """
    if options.method == SIDE:
        # Nothing is trained.
        return {EMIT_METHOD: extract_emit(program)}
    if state_access == "outputs":
        if options.prefix == "method" or options.generate:
            raise UsageError(
                f"--backend {options.backend} makes programs of one method; leave out --prefix method and --generate"
            )
        return {FORWARD_METHOD: program}
    methods = {FORWARD_METHOD: program}
    if options.method == "prge" and state_access == "buffers":
        methods[APPLY_METHOD] = extract_apply(program)
    if options.prefix == "method":
        if find_shared_prefix(program) is None:
            hint = "choose --layers last:K with K less than the number of layers"
            raise UsageError("there is no block before the first trained layer", hint=hint)
        methods[PREFIX_METHOD] = extract_prefix(program)
    if options.method != "prge":
        methods[EVALUATE_METHOD] = extract_evaluate(program)
    if options.generate:
        methods[NEXT_TOKENS_METHOD] = extract_next_tokens(methods.get(EVALUATE_METHOD, program))
    return methods


def described_by(manifest: Manifest, methods: dict[str, GraphProgram], passes: Sequence[Pass]) -> Manifest:
    """Return the manifest with the fields that follow from its methods: their sizes, and what a prefix depends on."""
    if manifest.emits:
        num_blocks, width = emitted_sizes(methods[EMIT_METHOD])
        return replace(manifest, num_blocks=num_blocks, hidden_size=width)
    forward = methods[FORWARD_METHOD]
    if PREFIX_METHOD in methods:
        hidden = forward.placeholder(HIDDEN_INPUT)
        assert hidden is not None
        manifest = replace(manifest, prefix="method", hidden_size=int(hidden.meta["val"].shape[-1]))
        return replace(manifest, prefix_sha256=prefix_sha256(manifest, passes))
    return replace(manifest, prefix="shared" if find_shared_prefix(forward) is not None else "none")

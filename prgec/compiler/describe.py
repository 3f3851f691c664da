"""The manifest of a program, from its source and its passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from prgec.backends.base import Backend
from prgec.compiler.given_a import hash_of, hash_of_prompts
from prgec.compiler.options import CompileOptions
from prgec.compiler.pipelines import first_of, scheme_of
from prgec.compiler.resolve import Resolved
from prgec.core.contract.arrays import State
from prgec.core.contract.manifest import Manifest, Site
from prgec.core.contract.names import HOST_STATE, NO_FINGERPRINT, RATES, SIDE, UPDATE_NUMBERS
from prgec.core.machine.versions import installed_versions
from prgec.errors import UsageError
from prgec.passes.differentiate import Differentiate
from prgec.passes.dualize import Dualize
from prgec.passes.infra import Pass
from prgec.passes.inject_lora_fa import InjectLoraFa
from prgec.passes.insert_optimizer import InsertOptimizer
from prgec.passes.insert_self_update import InsertSelfUpdate
from prgec.passes.quantize_embedding import QuantizeEmbedding
from prgec.passes.return_state import ReturnState
from prgec.passes.spec import print_pipeline

P = TypeVar("P", bound=Pass)


def manifest_of(
    resolved: Resolved, backend: Backend, *, sites: tuple[Site, ...], given: State, prompts: Sequence[Sequence[int]]
) -> Manifest:
    """Describe a program whose passes have run, but for the fields that follow from its methods.

    Args:
        resolved: The compilation.
        backend: Its backend.
        sites: The layers that are trained.
        given: A of every site, where it was given and not drawn.
        prompts: Prompts by which weights were rounded or A was calibrated.

    Raises:
        UsageError: If the passes make no program that trains.
    """
    options, passes, source = resolved.options, resolved.passes, resolved.source
    if not sites and options.method != SIDE:
        raise UsageError("the pipeline trains nothing", hint="keep inject-lora-fa in --passes")
    embedding = first_of(passes, QuantizeEmbedding)
    return Manifest(
        model=source.checkpoint.name,
        architecture=source.checkpoint.architecture,
        backend=options.backend,
        seq_len=options.seq_len,
        dynamic_seq_len=resolved.dynamic,
        num_labels=options.num_labels,
        vocab_size=source.vocab_size,
        quantize=scheme_of(passes),
        quantize_embedding=embedding.bits if embedding else 0,
        state_access=_state_access(passes),
        generate=options.generate,
        context=options.context,
        rollouts=options.rollouts,
        answers=options.answers,
        sites=sites,
        pipeline=print_pipeline(passes),
        base_sha256=source.base_sha256,
        versions={**installed_versions(), **backend.versions()},
        soc=backend.soc,
        data_sha256=NO_FINGERPRINT if backend.has_data_file else "",
        a_sha256=hash_of(given),
        prompts_sha256=hash_of_prompts(prompts),
        planned_bytes=resolved.planned_bytes,
        config=resolved.config,
        pad_token_id=_pad_id(resolved),
        has_checksums=True,
        **(_of_side(options) if options.method == SIDE else _method_of(options, passes)),
    )


def _of_side(options: CompileOptions) -> dict[str, Any]:
    """A program that trains nothing: as of one query and a branch of rank 1, in no layer."""
    return {
        "q": 1,
        "batch_size": options.num_rows,
        "state": "seeded",
        "method": SIDE,
        "rank": 1,
        "alpha": 1.0,
        "a_seed": 0,
    }


def _method_of(options: CompileOptions, passes: Sequence[Pass]) -> dict[str, Any]:
    """The fields that differ between programs that measure losses and those that compute gradients."""
    branch = _only(passes, InjectLoraFa)
    adapter = {"rank": branch.rank, "alpha": branch.alpha, "a_seed": branch.seed}
    differentiate = first_of(passes, Differentiate)
    if differentiate is None:
        q, state = _only(passes, Dualize).q, _only(passes, InsertSelfUpdate).state
        return {"q": q, "batch_size": options.num_rows // (2 * q), "state": state, **adapter}
    optimizer = _only(passes, InsertOptimizer)
    is_hosts = optimizer.state == HOST_STATE
    return {
        **adapter,
        "q": 1,
        "batch_size": options.num_rows,
        "state": optimizer.state,
        "method": differentiate.method,
        "optimizer": optimizer.rule,
        "lr": RATES[optimizer.rule],
        # A host that has the gradients of a call can add them up.
        "accumulates": optimizer.accumulate or is_hosts,
        "label_weights": differentiate.weighted,
        "update": {name: getattr(optimizer, name) for name in UPDATE_NUMBERS} if is_hosts else {},
    }


def _state_access(passes: Sequence[Pass]) -> str:
    kept = (first_of(passes, InsertSelfUpdate), first_of(passes, InsertOptimizer))
    if any(each is not None and each.state == HOST_STATE for each in kept):
        return "inputs"
    return "outputs" if first_of(passes, ReturnState) else "buffers"


def _pad_id(resolved: Resolved) -> int:
    """The tokenizer's pad token, unless the embedding has no such row; nothing ever attends to padding."""
    pad_id = resolved.tokenizer.pad_id
    return pad_id if pad_id < resolved.source.vocab_size else 0


def _only(passes: Sequence[Pass], kind: type[P]) -> P:
    found = [each for each in passes if isinstance(each, kind)]
    if len(found) != 1:
        raise UsageError(f"the pipeline has {kind.name} {len(found)} times; a program that trains itself needs it once")
    return found[0]

"""The methods with a cache: the passes of the trained graph over the same model, less the training.

Their weights come out as the same bytes, so that a file holds them once, and their B has the same name, so that it is
the trained one.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import replace

import torch

from prgec.compiler.frontend.decode import export_decode
from prgec.compiler.frontend.extend import export_extend
from prgec.compiler.given_a import give_a
from prgec.compiler.options import CompileOptions
from prgec.core.contract.arrays import State
from prgec.core.contract.manifest import Manifest, Site
from prgec.core.contract.names import DECODE_METHOD, EXTEND_CHUNK, EXTEND_METHOD
from prgec.errors import InternalError
from prgec.passes.branch_to_bmm import BranchToBmm
from prgec.passes.infra import Pass, Role
from prgec.passes.inject_lora_fa import InjectLoraFa
from prgec.passes.pipeline import run_pipeline
from prgec.passes.program import GraphProgram
from prgec.passes.record import PassRecord
from prgec.passes.rewrite import Rewriter
from prgec.passes.sites import b_names, is_b, sites_of

aten = torch.ops.aten


def traced_readers(options: CompileOptions, model: torch.nn.Module) -> dict[str, GraphProgram]:
    """Return the model as it reads on, by method, where it is to have a cache; no pass has seen it."""
    if not options.context:
        return {}
    context, bits = options.context, options.quantize_cache
    chunk = min(EXTEND_CHUNK, context)
    readers = {EXTEND_METHOD: export_extend(model, context=context, chunk=chunk, dynamic=True, bits=bits)}
    if options.rollouts:
        readers[DECODE_METHOD] = export_decode(model, context=context, rows=options.rollouts, bits=bits)
    return readers


def finish_reader(
    reader: GraphProgram, trained: GraphProgram, passes: Sequence[Pass], manifest: Manifest, given: State
) -> None:
    """Run the passes that made `trained` over the model as it reads on, as far as they are not about training.

    Args:
        reader: One of `traced_readers`; edited in place.
        trained: The finished forward.
        passes: Passes that made it.
        manifest: Manifest of the program.
        given: A of every site, where it was given and not drawn.

    Raises:
        InternalError: If the sites do not come out as those of `trained`.
    """
    reader.activations = trained.activations

    def callback(number: int, each: Pass, program: GraphProgram, record: PassRecord) -> None:
        del number, record
        if isinstance(each, InjectLoraFa):
            give_a(program, given, each)

    run_pipeline(reader, reading_passes(passes, manifest.sites), callback)
    if sites_of(reader) != manifest.sites:
        raise InternalError("the model with a cache has other sites than the one that is trained")
    if manifest.state == "dual":
        _average_copies(reader, trained)


def reading_passes(passes: Sequence[Pass], sites: Sequence[Site]) -> list[Pass]:
    """Those of `passes` that a model without training needs, with a branch at `sites` and nowhere else."""
    kept: list[Pass] = []
    for each in passes:
        if isinstance(each, InjectLoraFa):
            names = tuple(re.escape(site.name) for site in sites)
            # A delegate takes a frozen matrix for a constant, and B is none: a product of batches has no constants.
            kept += [replace(each, targets=names, layers=("all",), only_writers=False), BranchToBmm()]
        elif each.role is Role.SHARED:
            kept.append(each)
    return kept


def _average_copies(program: GraphProgram, trained: GraphProgram) -> None:
    """Let sites read the mean of the copies f32[q, 2, r, O]: that is B, whatever the noise around it."""
    rewriter = Rewriter(program, "extend")
    for name in b_names(program):
        rewriter.overwrite(name, operator.attrgetter(name)(trained.module).detach().clone())
        for node in [each for each in program.graph.nodes if is_b(each) and each.target == name]:
            users = list(node.users)
            with rewriter.before(node.next):
                mean = rewriter.call(aten.mean.dim, node, [0, 1])
            for user in users:
                rewriter.feed(user, node, mean)
    rewriter.refresh_all()
    program.finish()

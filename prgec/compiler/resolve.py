"""Decide everything that the options of a compilation leave open, and load the model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from prgec.backends.base import Backend
from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.given_a import options_for
from prgec.compiler.lengths import fit_options
from prgec.compiler.options import CompileOptions, repeating_text
from prgec.compiler.pipelines import pipeline_of, scheme_of
from prgec.compiler.preflight import check_device_memory, check_host_memory
from prgec.compiler.source import Source, load_source
from prgec.core.contract.tokenizer import Tokenizer
from prgec.core.formats.peft import PeftAdapter, read_peft
from prgec.passes.infra import Pass


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A compilation with nothing left open.

    Attributes:
        options: The options, with the T and K of the data and the layers of the adapter.
        passes: The pipeline.
        source: The checkpoint.
        tokenizer: Its tokenizer.
        adapter: The LoRA adapter to continue from; None for none.
        dynamic: Whether T is symbolic in the graphs.
        planned_bytes: Memory of training in the C++ driver; 0 where it is not modelled.
        config: The TOML file that makes the same program again.
    """

    options: CompileOptions
    passes: tuple[Pass, ...]
    source: Source
    tokenizer: Tokenizer
    adapter: PeftAdapter | None
    dynamic: bool
    planned_bytes: int
    config: str


def resolve(given: CompileOptions, backend: Backend) -> tuple[Resolved, torch.nn.Module]:
    """Return the compilation that options and data stand for, and the model.

    Args:
        given: Options as the user gave them.
        backend: The backend they name.

    Raises:
        PrgecError: One of its subclasses, before the model is loaded where that can be known.
    """
    adapter = read_peft(given.lora_a) if given.lora_a and not given.is_calibrated else None
    options = options_for(given, adapter) if adapter else given
    scheme = scheme_of(pipeline_of(options, backend))
    backend.check()
    checkpoint = find_checkpoint(options.model)
    check_host_memory(backend, checkpoint, options, scheme)
    if not options.data:
        # T and K of data are known only once the tokenizer is loaded.
        check_device_memory(checkpoint, options)
    source, model = load_source(options)
    tokenizer = Tokenizer.unpack(source.tokenizer)
    options = fit_options(options, tokenizer, source.max_positions)
    planned = check_device_memory(checkpoint, options)
    fitted = replace(given, seq_len=options.seq_len, num_labels=options.num_labels, answers=options.answers)
    resolved = Resolved(
        options=options,
        passes=pipeline_of(options, backend),
        source=source,
        tokenizer=tokenizer,
        adapter=adapter,
        dynamic=backend.dynamic_seq_len and not options.static,
        planned_bytes=planned.total if planned is not None else 0,
        config=repeating_text(fitted, source.checkpoint.name),
    )
    return resolved, model

"""Compile a model, and plan the memory of its training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prgec.api.configs import LoraConfig
from prgec.api.inputs import Data, data_file
from prgec.api.notebook import notebook_bar
from prgec.api.program import Program
from prgec.compiler.cached import compile_cached
from prgec.compiler.options import CompileOptions
from prgec.compiler.options_from import options_from
from prgec.compiler.plan.memory import Memory, memory_of
from prgec.compiler.plan.source import read_shape
from prgec.compiler.preflight import workload_of
from prgec.compiler.progress import Listener, ignore
from prgec.core.machine.quiet import quiet_libraries
from prgec.errors import UsageError

_NAMES = tuple(each.name for each in fields(CompileOptions))
# Names of fields that users know by those of the flags.
_FLAGS = {"label_tokens": "num_labels", "map": "columns"}


def compile(
    model: Any,
    *,
    data: Data | None = None,
    output: str | Path = "model.pte",
    lora: LoraConfig | None = None,
    tokenizer: Any = None,
    force: bool = False,
    use_cache: bool = True,
    on_progress: Listener | None = None,
    **options: Any,
) -> Program:
    """Compile a checkpoint into a program that trains itself, and open it.

    Args:
        model: Folder, GGUF file, alias or hub id of a checkpoint; or a model of transformers, with its `tokenizer`.
        data: Rows that the program must hold: they fix its lengths. A data file or rows; None takes `seq_len` and
            `label_tokens`.
        output: File to write.
        lora: The adapter to train; None for rank 16 on all linear layers.
        tokenizer: Tokenizer of a model of transformers.
        force: Whether a file at `output` is replaced.
        use_cache: Whether a program that was compiled before is copied.
        on_progress: Called as stages and their parts begin; None shows a bar in a notebook, and nothing elsewhere.
        options: Flags of `prgec compile`, by name: `method`, `quantize`, `batch_size`, `generate`, `context`.

    Returns:
        The program; it is loaded when it is first used.

    Raises:
        PrgecError: One of its subclasses; nothing is written then. A `UsageError` for an option that does not exist.

    Example:
        >>> program = prgec.compile("smollm2-135m", data="train.jsonl", quantize="8da4w")  # doctest: +SKIP
    """
    quiet_libraries()
    with _checkpoint(model, tokenizer) as name, _files(data) as paths:
        given = {"model": name, "data": paths, "output": Path(output), "force": force}
        compile_cached(_options(given, lora, options), on_progress or _shown(), use_cache=use_cache)
    return Program(output)


def _shown() -> Listener:
    bar = notebook_bar()
    if bar is None:
        return ignore
    return lambda progress: bar.show(progress.fraction, f"{progress.stage} {progress.detail}".strip())


def plan(model: str, *, lora: LoraConfig | None = None, **options: Any) -> Memory:
    """Return the memory that training a program takes in the C++ driver, without compiling it.

    Args:
        model: Checkpoint, or a size such as `TinyLlama-1.1B` (docs/plan.md).
        lora: The adapter to train.
        options: Flags of `prgec compile`, by name; `seq_len` and `label_tokens` are those of the rows.

    Raises:
        PrgecError: If the model is unknown, or the options have no plan.

    Example:
        >>> prgec.plan("SmolLM2-135M", batch_size=8, seq_len=64).total  # doctest: +SKIP
        412000000
    """
    shape = read_shape(model)
    work = workload_of(_options({"model": model}, lora, options), shape)
    if work is None:
        raise UsageError("there is no plan for these options", hint="docs/plan.md lists what a plan knows")
    return memory_of(shape, work)


def _options(given: Mapping[str, Any], lora: LoraConfig | None, options: Mapping[str, Any]) -> CompileOptions:
    named = {_FLAGS.get(name, name): value for name, value in options.items()}
    for name in named:
        if name not in _NAMES:
            close = get_close_matches(name, [*_NAMES, *_FLAGS], n=1)
            raise UsageError(
                f"prgec.compile has no option {name!r}", hint=f"did you mean {close[0]!r}?" if close else None
            )
    return options_from({**named, **(lora or LoraConfig()).to_options(), **given})


@contextmanager
def _files(data: Data | None) -> Iterator[tuple[Path, ...]]:
    if data is None:
        yield ()
        return
    with data_file(data) as path:
        yield (path,)


@contextmanager
def _checkpoint(model: Any, tokenizer: Any) -> Iterator[str]:
    """Yield the name of a checkpoint; a model in memory is saved for as long as it is needed.

    Raises:
        UsageError: If a model in memory comes without a tokenizer, or a name with one.
    """
    if isinstance(model, str | Path):
        if tokenizer is not None:
            raise UsageError("a checkpoint has its own tokenizer", hint="leave tokenizer out")
        yield str(model)
        return
    if tokenizer is None or not hasattr(model, "save_pretrained"):
        raise UsageError(
            f"model is a {type(model).__name__}; expected a checkpoint, or a model of transformers and its tokenizer"
        )
    name = Path(str(getattr(model.config, "_name_or_path", "") or type(model).__name__)).name
    with TemporaryDirectory(prefix="prgec-") as folder:
        path = Path(folder) / name
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        yield str(path)

"""Compiles a program, or copies it where the same compilation was done before."""

from __future__ import annotations

import logging

from prgec.compiler.cache_key import cache_key
from prgec.compiler.check import check_options
from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.options import CompileOptions
from prgec.compiler.program_cache import ProgramCache
from prgec.compiler.progress import Listener, ignore
from prgec.compiler.result import CompileResult
from prgec.core.contract.ptd import data_path
from prgec.core.machine.extras import check_compiler
from prgec.core.machine.files import check_free

logger = logging.getLogger(__name__)


def compile_cached(options: CompileOptions, listener: Listener = ignore, *, use_cache: bool = True) -> CompileResult:
    """Copy the program of a compilation from the user's cache, or compile it and keep a copy there.

    A copy needs neither torch nor ExecuTorch. A cache that cannot be read or written costs time, never the program.

    Args:
        options: Compilation to do.
        listener: Called with the progress of a compilation; not of a copy.
        use_cache: Whether to look into the cache and keep what is compiled.

    Raises:
        PrgecError: One of its subclasses; `options.output` is as it was. A `UsageError` if it exists and is not to be
            replaced.
    """
    check_options(options)
    for path in (options.output, data_path(options.output)):
        check_free(path, force=options.force)
    cache = ProgramCache.of_user() if use_cache else None
    key = _key_of(options) if cache is not None else None
    if cache is not None and key is not None:
        found = cache.copy_to(key, options.output)
        if found is not None:
            return found

    check_compiler()
    from prgec.compiler.compile import compile_model

    result = compile_model(options, listener)
    if cache is not None and key is not None:
        try:
            cache.keep(key, result)
        except OSError as error:
            logger.warning("the program was not kept in %s: %s", cache.folder, error)
    return result


def _key_of(options: CompileOptions) -> str | None:
    checkpoint = find_checkpoint(options.model)
    try:
        return cache_key(options, checkpoint)
    except OSError:  # The compilation reports what cannot be read, by name.
        return None

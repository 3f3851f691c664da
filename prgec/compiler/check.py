"""Checks of options that need no model."""

from __future__ import annotations

from prgec.backends import check_settings
from prgec.compiler.options import CompileOptions
from prgec.compiler.rules import RULES
from prgec.errors import UsageError


def check_options(options: CompileOptions) -> None:
    """Check everything that needs no model.

    Raises:
        UsageError: On an impossible value, or options that do not go together.
    """
    for rule in RULES:
        rule.check(options)
    check_settings(options.backend, options.settings)
    if options.output.is_dir():
        raise UsageError("the output is a folder", where=options.output, hint="name a file: -o model.pte")
    if not options.output.parent.is_dir():
        raise UsageError("the folder of the output does not exist", where=options.output.parent)

"""Silence what third-party libraries print on import and load, so that stderr holds only prgec's own lines."""

from __future__ import annotations

import logging
import os
import warnings

DEBUG_VARIABLE = "PRGEC_DEBUG"

_NOISY_LOGGERS = ("torchao", "torch", "transformers", "executorch", "matplotlib", "root")
_ENVIRONMENT = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": "-all",
}


def is_debug() -> bool:
    """Return whether tracebacks and library messages were requested."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def quiet_libraries() -> None:
    """Lower the log level of the libraries prgec stands on; call before they are imported.

    Values a user set in the environment win, and PRGEC_DEBUG=1 turns this off altogether.
    """
    if is_debug():
        return
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")

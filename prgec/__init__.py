"""prgec: compile language models into programs that fine-tune themselves by inference alone.

import prgec

program = prgec.compile("smollm2-135m", data="train.jsonl", quantize="8da4w")
result = prgec.Trainer(program, train_dataset="train.jsonl", eval_dataset="test.jsonl").train()
print(result.accuracy, program.generate("The film was"))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from prgec.version import __version__

if TYPE_CHECKING:
    from prgec.api.adapter import Adapter as Adapter
    from prgec.api.compile import compile as compile
    from prgec.api.compile import plan as plan
    from prgec.api.configs import LoraConfig as LoraConfig
    from prgec.api.configs import TrainConfig as TrainConfig
    from prgec.api.program import Program as Program
    from prgec.api.program import load as load
    from prgec.api.rows import read_rows as read_rows
    from prgec.api.trainer import Trainer as Trainer
    from prgec.api.trainer import TrainerCallback as TrainerCallback
    from prgec.api.trainer import TrainResult as TrainResult
    from prgec.errors import PrgecError as PrgecError

# Public names, each imported when it is first used: torch only by what compiles.
_MODULES = {
    "compile": "prgec.api.compile",
    "load": "prgec.api.program",
    "plan": "prgec.api.compile",
    "read_rows": "prgec.api.rows",
    "LoraConfig": "prgec.api.configs",
    "TrainConfig": "prgec.api.configs",
    "Trainer": "prgec.api.trainer",
    "TrainerCallback": "prgec.api.trainer",
    "TrainResult": "prgec.api.trainer",
    "Program": "prgec.api.program",
    "Adapter": "prgec.api.adapter",
    "PrgecError": "prgec.errors",
}
__all__ = ["__version__", *_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'prgec' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})

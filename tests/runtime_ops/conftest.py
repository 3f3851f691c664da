"""Fixtures of kernel tests: a module lowered to the stock ExecuTorch runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.runtime import Runtime

from prgec.runtime_ops import library, native  # noqa: F401 - library registers the operators

Execute = Callable[..., list[torch.Tensor]]


@pytest.fixture
def compiled() -> Callable[[torch.nn.Module, tuple[torch.Tensor, ...]], Execute]:
    native.load_kernels()
    alive: list[Any] = []  # The runtime reads the buffer and the program for as long as a method runs.

    def compile_module(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> Execute:
        exported = torch.export.export(module, args, strict=True)
        config = EdgeCompileConfig(_check_ir_validity=False)
        buffer = to_edge_transform_and_lower(exported, compile_config=config).to_executorch().buffer
        program = Runtime.get().load_program(buffer)
        alive.extend((buffer, program))
        method = program.load_method("forward")
        return lambda *inputs: list(method.execute(inputs))

    return compile_module

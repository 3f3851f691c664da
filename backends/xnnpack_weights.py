"""Refuses programs in which XNNPACK may take one weight for another.

Methods share the weights that XNNPACK packs for them (prgec/runtime/engines, prgec/device): without that a program with
gradients holds most weights twice. ExecuTorch's cache of packed weights names a weight by its bytes alone and
distinguishes layouts by a number of XNNPACK's, `outputs ^ inputs ^ nr ^ kr ^ sr ^ ...`, which does not change when
outputs and inputs are swapped. A weight [1, 128] and a weight [128, 1] of the same values differ by `nr` where narrow
layers have kernels of their own: on every x86-64 and on ARM64 without SME. With SME they do not, and the second one
found reads the packed form of the first. So no program may have two weights of the same bytes in different shapes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from prgec.errors import BackendError

# Leading values, which distinguish almost all weights, so that few are hashed whole.
_FIRST = 64


def check_packed_weights(programs: Mapping[str, ExportedProgram]) -> None:
    """Check that no two weights of linears have the same bytes in different shapes.

    Raises:
        BackendError: If two have.
    """
    alike: dict[tuple[bytes, int], list[tuple[str, torch.Tensor]]] = {}
    for program in programs.values():
        for name, weight in _weights(program):
            first = _bytes(weight.reshape(-1)[:_FIRST])
            alike.setdefault((first, weight.nbytes), []).append((name, weight))
    for group in alike.values():
        if len({weight.shape for _, weight in group}) > 1:
            _check_alike(group)


def _check_alike(group: list[tuple[str, torch.Tensor]]) -> None:
    seen: dict[bytes, tuple[str, torch.Tensor]] = {}
    for name, weight in group:
        other, found = seen.setdefault(hashlib.sha256(_bytes(weight)).digest(), (name, weight))
        if found.shape != weight.shape:
            raise BackendError(
                f"the weights {other} {list(found.shape)} and {name} {list(weight.shape)} hold the same values; "
                "XNNPACK may take one for the other",
                hint="change a value of one, or leave its layer out",
            )


def _bytes(weight: torch.Tensor) -> bytes:
    return weight.detach().contiguous().view(torch.uint8).numpy().tobytes()


def _weights(program: ExportedProgram) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and values of the weights of linears, packed or before their scales."""
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    values = {**program.state_dict, **program.constants}
    for call in program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default):
        weight = call.args[1]
        while isinstance(weight, Node) and weight.op == "call_function":
            weight = weight.args[0]
        name = names.get(weight.name) if isinstance(weight, Node) else None
        if name is not None and name in values:
            yield name, values[name]

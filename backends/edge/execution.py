"""Edge programs as an ExecuTorch program: writes in place, memory planned, bytes emitted.

`EdgeProgramManager.to_executorch` does the same, and traces each graph once for the specs of its tensors and again to
take functional writes apart. Here specs are made of the values that nodes have.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from executorch.exir import ExecutorchBackendConfig, ExecutorchProgramManager
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.passes import dead_code_elimination_pass
from executorch.exir.passes.external_constants_pass import external_constants_pass
from executorch.exir.passes.insert_write_back_for_buffers_pass import insert_write_back_for_buffers_pass
from executorch.exir.passes.normalize_view_copy_base_pass import NormalizeViewCopyBasePass
from executorch.exir.passes.replace_edge_with_backend_pass import EdgeToBackendOpsPass
from executorch.exir.passes.replace_view_copy_with_view_pass import ReplaceViewCopyWithViewPass
from executorch.exir.passes.spec_prop_pass import SpecPropPass, make_spec
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map

from prgec.backends.edge.writes import to_in_place
from prgec.passes.lifted import Signature


def to_executorch(
    programs: Mapping[str, ExportedProgram],
    named_data: NamedDataStoreOutput,
    constants: Mapping[str, Any],
    config: ExecutorchBackendConfig,
) -> ExecutorchProgramManager:
    """Plan the memory of every method and emit the program.

    Args:
        programs: Lowered methods by name; consumed.
        named_data: Weights of their delegates.
        constants: Constant methods by name.
        config: Memory planning and what goes into files beside the program.
    """
    planning: Any = config.memory_planning_pass
    for program in programs.values():
        to_in_place(program.graph)
        module, signature = insert_write_back_for_buffers_pass(program)
        _describe_tensors(module)
        SpecPropPass().update_placeholder_tensor_specs(program, module)
        for step in (
            EdgeToBackendOpsPass(),
            NormalizeViewCopyBasePass(),
            dead_code_elimination_pass,
            ReplaceViewCopyWithViewPass(),
            config.sym_shape_eval_pass,
            config.to_out_var_pass,
        ):
            step(module)
        if config.external_constants:
            external_constants_pass(module)
        planning.run(module, Signature(signature.input_specs, signature.output_specs))
    planning.run_multimethod()
    return ExecutorchProgramManager(dict(programs), dict(constants), config, named_data)


def _describe_tensors(module: GraphModule) -> None:
    """Give every node the specs that memory is planned by."""
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.copy_.default:
            # Written back just before.
            node.meta["val"] = node.args[0].meta["val"]
        node.meta["tensor_meta"] = tree_map(lambda _: None, node.meta.get("val"))
        if node.op == "output":
            node.meta["spec"] = tree_map(_spec, node.args[0])
        elif node.target is operator.getitem:
            node.meta["spec"] = tree_map(_spec, node.args[0])[node.args[1]]
        elif not (node.target is executorch_call_delegate and "spec" in node.meta):
            node.meta["spec"] = tree_map(make_spec, node.meta.get("val"))


def _spec(value: Any) -> Any:
    return value.meta.get("spec") if isinstance(value, Node) else None

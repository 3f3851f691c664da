"""The graph of a delegate as OpenVINO's CPU plug-in wants to read it.

ExecuTorch's own exporter does the same, but its package imports NNCF, which this has no use for and whose versions do
not go with OpenVINO's. ExecuTorch finds an exporter by the name of its class.
"""

from __future__ import annotations

from typing import Any, final

import torch
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from prgec.backends.openvino.libraries import import_module
from prgec.backends.openvino.narrow import pack_nibbles, spell_out_scales

DEVICE = "CPU"
_TYPES = {torch.float32: "f32", torch.int64: "i64", torch.int32: "i32", torch.int8: "i8", torch.bool: "boolean"}


@final
class OpenvinoBackend(BackendDetails):  # type: ignore[misc]  # executorch ships no types for it
    """Makes what ExecuTorch's delegate of this name imports."""

    @classmethod
    def preprocess(cls, edge_program: ExportedProgram, module_compile_spec: list[CompileSpec]) -> PreprocessResult:
        """Convert and export one delegate's graph."""
        del module_compile_spec
        openvino = import_module("openvino")
        compiled = openvino.Core().compile_model(_converted(openvino, edge_program), DEVICE)
        return PreprocessResult(processed_bytes=compiled.export_model().getvalue())


def _converted(openvino: Any, program: ExportedProgram) -> Any:
    """OpenVINO's model of a graph, with inputs of the shapes and types the delegate will bind to them."""
    decoder = import_module("openvino.frontend.pytorch.fx_decoder")
    frontend = import_module("openvino.frontend").FrontEndManager().load_by_framework("pytorch")
    # Not kept anywhere else: the frontend reads weights from it until the model is converted.
    module = program.module()
    spell_out_scales(module)
    source = decoder.TorchFXPythonDecoder(module)
    model = frontend.convert(frontend.load(source))
    pack_nibbles(model)
    names = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.name in names]
    for bound, value in zip(model.inputs, values, strict=True):
        bound.get_node().set_element_type(getattr(openvino.Type, _TYPES[value.dtype]))
        bound.get_node().set_partial_shape(openvino.PartialShape(list(value.shape)))
    model.validate_nodes_and_infer_types()
    return model

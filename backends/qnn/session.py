"""ExecuTorch's QNN exporter for the time of one lowering."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator
from typing import Any

import torch
from executorch.backends.qualcomm._passes import I64toI32, RecomposeRmsNorm, Remove0DTensor
from executorch.backends.qualcomm._passes.qnn_pass_manager import get_qnn_pass_manager_cls
from executorch.backends.qualcomm.qnn_preprocess import QnnBackend
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset, QnnExecuTorchBackendType
from executorch.backends.qualcomm.utils.qnn_manager_lifecycle import QnnManagerContext
from executorch.backends.qualcomm.utils.utils import generate_htp_compiler_spec, generate_qnn_executorch_compiler_spec
from torch.export import ExportedProgram

from prgec.backends.base import EdgePass
from prgec.backends.edge_clones import remove_clones
from prgec.backends.qnn.loading import sdk_root
from prgec.backends.qnn.socs import Soc
from prgec.core.contract.names import EMIT_METHOD, FORWARD_INPUTS, FORWARD_METHOD
from prgec.core.machine.native_log import captured_native_stderr
from prgec.errors import BackendError, PrgecError

_INDICES = {"tokens", "label_pos"}
_VECTOR_F16 = 64
# Those the HTP runs; a program has one of them.
_METHODS = (FORWARD_METHOD, EMIT_METHOD)
_ERROR = "[ERROR] [Qnn ExecuTorch]:"


def compile_specs(soc: Soc) -> list[Any]:
    """Options of the delegate: fp16 on the HTP of `soc`."""
    specs: list[Any] = generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset[soc.name], backend_options=generate_htp_compiler_spec(use_fp16=True)
    )
    return specs


def pass_manager() -> Any:
    """A fresh manager of Qualcomm's passes; they keep state from one run to the next."""
    return get_qnn_pass_manager_cls(QnnExecuTorchBackendType.kHtpBackend)()


def edge_passes(program: ExportedProgram, specs: list[Any]) -> list[EdgePass]:
    """Qualcomm's passes in the edge dialect, less what they would do to updates and loss, which stay on the CPU.

    Key and step of the noise, and the targets, are int64 there: only indices into the model become int32. And
    `Remove0DTensor` replaces `x[i]` by x, which is right for an x of one element only; the factors of an update have q.
    """
    others = frozenset(FORWARD_INPUTS) - _INDICES
    unwanted = (Remove0DTensor, RecomposeRmsNorm) if _has_narrow_norm(program) else (Remove0DTensor,)
    passes = pass_manager().get_to_edge_transform_passes(program, compiler_specs=specs)
    chosen = [
        I64toI32(program, skip_node=others) if isinstance(each, I64toI32) else each
        for each in passes
        if not isinstance(each, unwanted)
    ]
    return [remove_clones, *chosen]


def _has_narrow_norm(program: ExportedProgram) -> bool:
    """Whether a mean is taken over fewer numbers than one vector of the HTP holds.

    There its RMSNorm returns what memory held before: seen on the simulator for 32 wide rows, and never for 64.
    """
    means = program.graph.find_nodes(op="call_function", target=torch.ops.aten.mean.dim)
    return any(mean.args[0].meta["val"].shape[-1] < _VECTOR_F16 for mean in means)


@contextlib.contextmanager
def session(specs: list[Any]) -> Iterator[None]:
    """Open the HTP compiler, and leave neither environment nor settings of torch changed.

    Raises:
        BackendError: For a failure inside, in the words of Qualcomm's libraries where they left any.
    """
    failure: Exception | None = None
    with_mkldnn = torch.backends.mkldnn.enabled
    with captured_native_stderr() as log:
        try:
            with sdk_root(), _root_handled(), _weights_shared(), QnnManagerContext(dict.fromkeys(_METHODS, specs)):
                yield
        except Exception as error:  # neither the exporter nor the libraries have a base class of their own
            failure = error
        finally:
            # The exporter turns it off for good on some machines.
            torch.backends.mkldnn.enabled = with_mkldnn
    if failure is None:
        return
    errors = [line.removeprefix(_ERROR).strip() for line in log.text.splitlines() if line.startswith(_ERROR)]
    # The libraries report some of what they recover from as errors, so the last word is the one that counts.
    if errors and not (isinstance(failure, PrgecError) and failure.hint):
        raise BackendError(f"{failure}: {errors[-1][:200]}") from failure
    raise failure


@contextlib.contextmanager
def _root_handled() -> Iterator[None]:
    """Give the root logger a handler: `logging.warning` without one makes one, of a stderr that is closed soon."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


@contextlib.contextmanager
def _weights_shared() -> Iterator[None]:
    """Keep the exporter from copying all weights along with the graph that its passes are about to change."""
    QnnBackend.copy_exported_program_for_preprocess = staticmethod(_copy_without_weights)
    try:
        yield
    finally:
        del QnnBackend.copy_exported_program_for_preprocess


def _copy_without_weights(edge_program: ExportedProgram, compile_specs: list[Any]) -> ExportedProgram:
    del compile_specs
    tensors = [*edge_program.state_dict.values(), *edge_program.constants.values()]
    return copy.deepcopy(edge_program, {id(tensor): tensor for tensor in tensors})

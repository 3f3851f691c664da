"""CUDA: the GPUs of boards and desktops, through ExecuTorch's CudaPartitioner and CudaBackend.

The whole step is the delegate: noise, update and loss too. Its mutable buffers stay on the device and no method but
their own can see them, so a program has one method and returns its masters after the losses (return-state).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, ClassVar

from prgec.backends.base import Backend
from prgec.backends.cuda.preflight import check

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torch.fx import Node


class CudaBackend(Backend):
    """Lowers for the GPU of this machine."""

    name: ClassVar[str] = "cuda"
    # Kernels are tuned for the shapes they see while compiling.
    dynamic_seq_len: ClassVar[bool] = False
    has_kernels: ClassVar[bool] = False
    has_data_file: ClassVar[bool] = True
    schemes: ClassVar[frozenset[str]] = frozenset({"int8", "int4"})
    embedding_bits: ClassVar[frozenset[int]] = frozenset({8, 4})
    dtypes: ClassVar[tuple[str, ...]] = ("bf16", "f16", "f32")
    legality: ClassVar[frozenset[str]] = frozenset({"return-state", "narrow-weights"})
    methods: ClassVar[frozenset[str]] = frozenset({"prge", "exact", "shortcut"})
    # State kept by a host would cross to the device in every call.
    states: ClassVar[frozenset[str]] = frozenset({"seeded"})

    def check(self) -> None:
        """CUDA PyTorch, Triton, the CUDA toolkit, a C++ compiler and a GPU; there is no silent way around any.

        Raises:
            BackendError: With everything that is missing.
        """
        check()

    def versions(self) -> Mapping[str, str]:
        """The GPU a program is for and what compiled it: machine code for one architecture runs on no other."""
        import torch

        major, minor = torch.cuda.get_device_capability()
        return {
            "cuda": str(torch.version.cuda),
            "triton": importlib.metadata.version("triton"),
            "gpu": torch.cuda.get_device_name(),
            "gpu_arch": f"sm_{major}{minor}",
        }

    def partitioners(self) -> Sequence[Partitioner]:
        """ExecuTorch's own partitioner, which leaves attention to AOTInductor: its Triton kernel for it refuses f32."""
        from executorch.backends.cuda.cuda_backend import CudaBackend as Delegate
        from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        from prgec.core.contract.names import FORWARD_METHOD

        name = Delegate.generate_method_name_compile_spec(FORWARD_METHOD)
        return (CudaPartitioner([name, CompileSpec("triton_kernel_mode", b"OFF")]),)

    def why_on_cpu(self, op: str, node: Node, program: ExportedProgram) -> str:
        """Nothing should be."""
        del op, node, program
        return "left over by ExecuTorch's CUDA partitioner, which takes every op"

    def lowering(self) -> AbstractContextManager[None]:
        """AOTInductor as the noise needs it."""
        return exact_integers()


@contextmanager
def exact_integers() -> Iterator[None]:
    """Keep two of inductor's optimisations off integers that matter.

    joint_graph_constant_folding takes buffers of one element for constants, whatever changes them.
    constant_and_index_propagation computes int64 arithmetic on `arange` with 32-bit indices: products with Philox's
    multipliers fail, or come out wrong without a word from index 2148 on.
    """
    from torch._inductor import config

    with config.patch(joint_graph_constant_folding=False, constant_and_index_propagation=False):
        yield

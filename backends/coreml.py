"""Core ML: the delegate of iPhones, iPads and Macs. Lowered here, run nowhere yet."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING, ClassVar

from prgec.backends.lower_only import LowerOnlyBackend
from prgec.core.machine.extras import extra_hint
from prgec.errors import BackendError

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner

_PACKAGE = "coremltools"


class CoremlBackend(LowerOnlyBackend):
    """Lowers the forward and the gradients for Core ML, set to compute in f32: its default is f16."""

    name: ClassVar[str] = "coreml"
    delegate: ClassVar[str] = "CoreMLBackend"
    needs: ClassVar[str] = "iOS 18, macOS 15 or later, by an ExecuTorch built with Core ML and prgec's kernels"
    # No gradients: in their graphs coremltools 9.0 takes a scalar for a bias, and fails.
    legality: ClassVar[frozenset[str]] = frozenset({"lower-sdpa", "lower-eager-attention", "label-gather-to-bmm"})

    def check(self) -> None:
        """Apple's converter, which runs on Linux too.

        Raises:
            BackendError: If it is not here.
        """
        if importlib.util.find_spec(_PACKAGE) is None:
            raise BackendError("Apple's coremltools are not on this machine", hint=extra_hint("coreml"))

    def versions(self) -> Mapping[str, str]:
        """Version of the converter that wrote the models in the delegate."""
        return {_PACKAGE: importlib.metadata.version(_PACKAGE)}

    @contextmanager
    def lowering(self) -> Iterator[None]:
        """Without coremltools' progress bars and ExecuTorch's warnings about options that are set here."""
        with redirect_stderr(io.StringIO()):
            yield

    def partitioners(self) -> Sequence[Partitioner]:
        """Ours, by what ExecuTorch's would take."""
        from prgec.backends.coreml_partitioner import partitioner

        return (partitioner(),)

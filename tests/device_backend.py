"""A stand-in for a GPU: ExecuTorch's own kernels under the contract of a backend that keeps its state to itself."""

from __future__ import annotations

from typing import ClassVar

from prgec.backends.portable import PortableBackend


class DeviceBackend(PortableBackend):
    has_kernels: ClassVar[bool] = False
    has_data_file: ClassVar[bool] = True
    legality: ClassVar[frozenset[str]] = PortableBackend.legality | {"return-state"}

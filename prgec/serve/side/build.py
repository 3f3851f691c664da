"""A learnt network as a program for the device: `side(acts) -> y_side`.

Letters: B rows a call, L blocks, K label positions, D width, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from prgec.backends import load_backend
from prgec.backends.delegation_report import DelegationReport
from prgec.backends.lowering import lower
from prgec.compiler.write import write_program
from prgec.core.contract.names import (
    DELEGATION_METHOD,
    SIDE_CONTRACT_VERSION,
    SIDE_METHOD,
    SIDE_NETWORK_METHOD,
    VERSION_METHOD,
)
from prgec.core.formats.side_network import SideNetwork
from prgec.errors import UsageError
from prgec.serve.side.description import SideDescription
from prgec.serve.side.inference import InferenceNetwork
from prgec.serve.side.network import AdditiveNetwork

BACKENDS = ("xnnpack", "portable")


@dataclass(frozen=True)
class BuiltNetwork:
    """A finished program.

    Attributes:
        description: Its description.
        delegation: Delegates and CPU ops.
        file_bytes: Its size.
    """

    description: SideDescription
    delegation: DelegationReport
    file_bytes: int


def build(network: SideNetwork, output: Path, backend: str = BACKENDS[0], batch_size: int = 8) -> BuiltNetwork:
    """Lower a network.

    Args:
        network: The learnt network.
        output: The .pte to write.
        backend: Row of `BACKENDS`.
        batch_size: B.

    Raises:
        UsageError: If the backend or B is impossible.
        BackendError: If the network cannot be lowered here.
    """
    if backend not in BACKENDS:
        raise UsageError(f"--backend {backend} does not run side networks", hint=f"it may be: {', '.join(BACKENDS)}")
    if not 1 <= batch_size <= 1 << 12:
        raise UsageError(f"--batch-size is {batch_size}; expected 1 to {1 << 12}")
    if not output.parent.is_dir():
        raise UsageError("the folder of the output does not exist", where=output.parent)
    target = load_backend(backend)
    target.check()
    shape = network.shape
    acts = torch.zeros(batch_size, shape.num_blocks, shape.num_labels, shape.width)
    module = InferenceNetwork(AdditiveNetwork.of(network)).eval()
    with torch.no_grad():
        exported = torch.export.export(module, (acts,), strict=False)
    lowered = lower(target, {SIDE_METHOD: exported})
    description = SideDescription(
        shape=shape, norm=network.norm, rank=network.rank, batch_size=batch_size, backend=backend, sha256=network.sha256
    )
    constants = {
        VERSION_METHOD: SIDE_CONTRACT_VERSION,
        SIDE_NETWORK_METHOD: description.to_json(),
        DELEGATION_METHOD: lowered.delegation.to_json(),
    }
    return BuiltNetwork(description, lowered.delegation, write_program(output, lowered.finish(constants)))

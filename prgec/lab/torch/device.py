"""Where PyTorch computes."""

from __future__ import annotations

import torch

from prgec.errors import UsageError


def find_device(name: str) -> torch.device:
    """Return a device that is there.

    Args:
        name: `cpu`, `cuda`, or one of several, such as `cuda:1`.

    Raises:
        UsageError: If it is not there.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"cannot use device {name!r}: {reason}", hint="--device cpu works everywhere") from error
    return device

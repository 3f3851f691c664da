"""Two weights of the same bytes in different shapes, which XNNPACK may take one for the other, are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from prgec.backends import load_backend
from prgec.backends.lowering import lower
from prgec.backends.xnnpack_weights import check_packed_weights
from prgec.errors import BackendError


class Two(nn.Module):
    """A mean over four values, and what spreads it over them again."""

    def __init__(self, last: float, out: int = 4) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(4, 1, bias=False), nn.Linear(1, out, bias=False)
        with torch.no_grad():
            self.mean.weight.fill_(0.25)
            self.spread.weight.fill_(0.25)[-1] = last

    def forward(self, x: Tensor) -> Tensor:
        return self.spread(self.mean(x))


def _exported(module: nn.Module) -> ExportedProgram:
    return torch.export.export(module, (torch.zeros(3, 4),))


def test_the_same_bytes_in_another_shape_are_refused() -> None:
    message = (
        r"mean.weight \[1, 4\] and spread.weight \[4, 1\] hold the same values; XNNPACK may take one for the other"
    )
    with pytest.raises(BackendError, match=message):
        lower(load_backend("xnnpack"), {"forward": _exported(Two(0.25))})


@pytest.mark.parametrize("module", [Two(0.5), Two(0.25, out=5)], ids=["another value", "another size"])
def test_other_weights_are_not(module: nn.Module) -> None:
    check_packed_weights({"forward": _exported(module)})


def test_weights_of_other_methods_count() -> None:
    """They share the cache."""
    methods = {
        "forward": _exported(Two(0.25).mean),
        "evaluate": torch.export.export(Two(0.25).spread, (torch.ones(1, 1),)),
    }
    with pytest.raises(BackendError, match="hold the same values"):
        check_packed_weights(methods)

"""Why ops stay outside an XNNPACK delegate: reasons by place, by kind, or from XNNPACK's own partitioner."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from prgec.backends import STOCK, load_backend
from prgec.backends.delegation_report import DelegationReport
from prgec.backends.lowering import lower


class Awkward(nn.Module):
    """Ops XNNPACK refuses in the middle of a forward, around what every program has outside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(4, 16)
        self.register_buffer("table", torch.randn(9, 8))
        self.register_buffer("state", torch.zeros(4, 4))

    def forward(self, tokens: Tensor, label_pos: Tensor, targets: Tensor, lr: Tensor) -> Tensor:
        self.state.mul_(lr)
        hidden = self.embed(tokens) + self.table[: tokens.shape[1]]
        hidden = (hidden[..., :4] @ self.state) ** 3
        hidden = torch.cumsum(hidden, 1) * (tokens > 3).unsqueeze(-1)
        positions = torch.arange(4).unsqueeze(0)
        hidden = torch.bmm((label_pos.unsqueeze(-1) == positions).to(torch.float32), hidden[:, :4])
        log_probs = torch.log_softmax(self.head(hidden), -1)
        counts = torch.where(targets == -100, 0.0, 1.0)
        return -(torch.gather(log_probs, 2, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1) * counts).sum(1) / 2.0


@pytest.fixture(scope="module")
def report() -> DelegationReport:
    example = (torch.zeros(2, 7, dtype=torch.int64), *(torch.zeros(2, 1, dtype=torch.int64) for _ in range(2)))
    shapes = {"tokens": {1: Dim("T", min=5, max=8)}, "label_pos": None, "targets": None, "lr": None}
    with torch.no_grad():
        exported = torch.export.export(Awkward().eval(), (*example, torch.tensor(0.1)), dynamic_shapes=shapes)
    return lower(load_backend("xnnpack"), {"forward": exported}, STOCK).delegation


@pytest.mark.parametrize(
    ("op", "reasons"),
    [
        ("aten.embedding", {"XNNPACK has no table lookup"}),
        ("aten.cumsum", {"XNNPACK has no such op"}),
        ("aten.pow", {"XNNPACK: only support power == 2, got 3"}),
        (
            "aten.slice",
            {"tables are cut to T here; XNNPACK slices only fixed shapes", "XNNPACK slices only fixed shapes"},
        ),
        ("aten.gt", {"XNNPACK computes in floating point only"}),
        ("aten.where", {"the f32 loss"}),
        ("aten.div", {"the f32 loss"}),
        ("aten.neg", {"the f32 loss"}),
        ("aten.log_softmax", set()),
        ("aten._log_softmax", {"the f32 loss"}),
        (
            "aten.view",
            {
                "XNNPACK reshapes to fixed sizes and at most one inferred size",
                "the state update; it changes memory that a delegate would cache",
            },
        ),
        ("aten.sym_size", {"arithmetic on sizes"}),
    ],
)
def test_reason(report: DelegationReport, op: str, reasons: set[str]) -> None:
    assert {each.reason for each in report.cpu_ops if each.op == op} == reasons


def test_calls_of_one_op_are_listed_by_reason(report: DelegationReport) -> None:
    keys = [(each.op, each.reason) for each in report.cpu_ops]
    assert keys == sorted(set(keys))
    assert ("aten.eq", "one-hot rows of the label positions; XNNPACK has no integers") in keys
    assert ("aten.eq", "the f32 loss") in keys

"""What a plan says is what a process takes: a small program of each method, compiled and watched from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from prgec.plan.workload import Workload
from tests.checks.plan import Program, decoder, measure_program

_SMALL = decoder("llama", 128, 4, 352, 4, 2, head_dim=32, vocab_size=1280)
_WAYS = {
    "prge": Workload("prge", q=4, batch_size=4, seq_len=128),
    "exact": Workload("exact", batch_size=16, seq_len=32, num_labels=1),
    "shortcut": Workload("shortcut", batch_size=16, seq_len=32, num_labels=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", _WAYS)
def test_memory_is_within_five_percent(method: str, tmp_path: Path) -> None:
    found = measure_program(Program(method, _SMALL, _WAYS[method]), tmp_path)
    assert abs(found.error) < 0.05, (found.planned, found.anon_bytes)
    # The bare process is most of it, so what the program adds is held to a bound of its own.
    added, planned = found.anon_bytes - found.planned.driver, found.planned.total - found.planned.driver
    assert abs(planned / added - 1.0) < 0.15, (found.planned, found.anon_bytes)

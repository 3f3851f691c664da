"""Graphs that run to the same bits anywhere compute what they compute in PyTorch."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prgec.compiler.exact_run import ExactRun
from prgec.compiler.frontend.model import export_loss
from prgec.passes import pass_table
from tests.architectures import ARCHITECTURES, SEQ_LEN, Architecture, random_rows, transformers_losses
from tests.families import HYBRID

BEFORE_INJECTION = ("decompose-composites", "canonicalize", "fold-constants", "select-to-slice", "addmm-to-linear")


@pytest.mark.parametrize("each", (*ARCHITECTURES, HYBRID[0], HYBRID[1]), ids=lambda each: each.model_type)
def test_losses_are_those_of_transformers(each: Architecture) -> None:
    model = each.build().requires_grad_(False)
    program = export_loss(model, num_rows=2, seq_len=SEQ_LEN, num_labels=2, dynamic=True)
    for name in BEFORE_INJECTION:
        pass_table()[name]()(program)
    rows = random_rows(2, SEQ_LEN - 3)
    with torch.no_grad():
        (*_, (_, _, (found, *_))) = ExactRun(program.module).together([rows])
    torch.testing.assert_close(found.float(), transformers_losses(model, *rows), rtol=2e-4, atol=0.0)


def test_inputs_that_run_together_give_what_each_gives_alone() -> None:
    # Rounded weights are kept where they are frozen, as compilation has them.
    model = ARCHITECTURES[0].build().requires_grad_(False)
    program = export_loss(model, num_rows=2, seq_len=SEQ_LEN, num_labels=2, dynamic=True)
    sets = [random_rows(2, length) for length in (SEQ_LEN - 3, SEQ_LEN, SEQ_LEN - 5)]
    with torch.no_grad():
        alone = [[value for *_, value in ExactRun(program.module).together([each])] for each in sets]
        together: list[list[object]] = [[] for _ in sets]
        for _, place, value in ExactRun(program.module).together(sets):
            together[place].append(value)
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True) if isinstance(pair[0], torch.Tensor))
        assert torch.equal(one[-1][0], other[-1][0])  # type: ignore[index]


def test_a_run_ends_after_the_last_node_that_is_read() -> None:
    model = ARCHITECTURES[0].build().requires_grad_(False)
    program = export_loss(model, num_rows=2, seq_len=SEQ_LEN, num_labels=2, dynamic=True)
    last = next(program.calls(torch.ops.aten.linear.default))
    sets = [random_rows(2, SEQ_LEN - 3), random_rows(2, SEQ_LEN)]
    with torch.no_grad():
        found = list(ExactRun(program.module).together(sets, last))
    assert [(node, place) for node, place, _ in found[-2:]] == [(last, 0), (last, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--quantize", "8da4w"), ("--lora-a", "calibrated")], ids=lambda each: each[1])
def test_programs_are_the_same_on_other_processors(options: tuple[str, str], tmp_path: Path) -> None:
    """Decided by data; with other instructions, one thread, another folder and another order of hashes."""
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"the film number {n} was", "completion": (" great", " dull")[n % 2]} for n in range(40)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    machines = (
        {},
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
        {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "7"},
    )
    found = set()
    for number, machine in enumerate(machines):
        output = tmp_path / str(number) / "m.pte"
        output.parent.mkdir()
        command = [sys.executable, "-m", "prgec", "compile", "demo", *options, "--data", str(data)]
        environment = {**os.environ, **machine}
        subprocess.run(
            [*command, "--no-cache", "-o", str(output)], env=environment, cwd=output.parent, check=True, timeout=300
        )
        found.add(hashlib.sha256(output.read_bytes()).hexdigest())
    assert len(found) == 1

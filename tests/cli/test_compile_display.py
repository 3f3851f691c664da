"""A compilation shows how far it is, in a pipe too, and a signal leaves nothing half-written."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prgec.cli.compile_display import CompileDisplay, line
from prgec.cli.main import INTERRUPTED_EXIT_CODE
from prgec.compiler.progress import SHARES, STAGES, Progress
from tests.architectures import architecture


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(stage="load"), "reading the checkpoint, 20 s"),
        (
            Progress(stage="passes", done=10, total=20, detail="differentiate, 5,210 nodes"),
            "rewriting the graph 11 of 20 (differentiate, 5,210 nodes), 20 s, about 20 s left",
        ),
        (Progress(stage="write"), "writing, 20 s, about 0 s left"),
    ],
)
def test_a_line(progress: Progress, text: str) -> None:
    assert line(progress, elapsed=20.0) == text


def test_shares_grow_to_one() -> None:
    fractions = [Progress(stage=stage).fraction for stage in STAGES]
    assert fractions == sorted(fractions) and fractions[0] == 0.0
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert Progress(stage="write", done=1, total=1).fraction == pytest.approx(1.0)


def test_a_pipe_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with CompileDisplay(seconds_between_lines=0.01) as display:
        display(Progress(stage="export"))
        deadline = time.monotonic() + 10
        text = ""
        while "tracing" not in text and time.monotonic() < deadline:
            time.sleep(0.01)
            text += capsys.readouterr().err
    assert "compile: tracing the model, 0 s\n" in text


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGINT, id="Ctrl-C", marks=pytest.mark.slow), pytest.param(signal.SIGTERM, id="SIGTERM")],
)
def test_a_signal_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    model = architecture("Llama").write(tmp_path / "llama")
    output = tmp_path / "out" / "m.pte"
    output.parent.mkdir()
    output.write_text("mine")
    # The writing itself is stretched, for the signal to meet it.
    script = """
import sys, time
from executorch.exir import ExecutorchProgramManager
def write(self, file):
    file.write(b"half"); file.flush(); print("half", flush=True); time.sleep(60)
ExecutorchProgramManager.write_to_file = write
from prgec.backends.edge import execution
for each in vars(execution).values():
    if hasattr(each, "write_to_file"):
        each.write_to_file = write
from prgec.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", script, "compile", str(model), "--seq-len", "16", "-o", str(output), "--no-cache"]
    process = subprocess.Popen(
        [*command, "--lowering", "in-place", "--force"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell starts what runs in the background with Ctrl-C ignored, and children keep that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"half\n"
    process.send_signal(number)
    assert process.wait(30) == INTERRUPTED_EXIT_CODE
    assert process.stderr.read().splitlines()[-1] == b"error: interrupted"
    assert [each.name for each in output.parent.iterdir()] == ["m.pte"]
    assert output.read_text() == "mine"

"""The package of docs/example-plugin, installed as pip does it: prgec finds what it adds by entry points."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import PROGRAMS, Compile

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "example-plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A build leaves files beside what it builds.
    source, target = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("installed")
    shutil.copytree(EXAMPLE, source)
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, str(source)], check=True)
    return target


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a b", "completion": "c"}\n{"prompt": "b a", "completion": "d"}\n')
    return path


def _prgec(installed: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prgec", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_backend(installed: Path, checkpoint: Path, rows: Path, tmp_path: Path) -> None:
    program = tmp_path / "linears.pte"
    done = _prgec(installed, "compile", checkpoint, "--data", rows, "--backend", "linears", "-o", program, "--no-cache")
    assert done.returncode == 0, done.stderr
    shown = _prgec(installed, "inspect", program).stdout
    assert "on linears" in shown and "XnnpackBackend" in shown and "aten.linear" in shown
    done = _prgec(installed, "run", program, "--data", rows, "--steps", 2, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    # Without it there are the others.
    missing = _prgec(tmp_path, "compile", checkpoint, "--data", rows, "--backend", "linears", "-o", tmp_path / "x.pte")
    assert missing.returncode == 2 and "linears" in missing.stderr and "portable" in missing.stderr


def test_a_quantiser(installed: Path, checkpoint: Path, tmp_path: Path) -> None:
    """The layers multiply with its values, and one that returns something else is named."""
    code = (
        "import torch\nfrom pathlib import Path\nfrom prgec.compiler.options import CompileOptions\n"
        "from prgec.compiler.compile import build_graphs\n"
        "from safetensors.torch import load_file\n"
        f"options = CompileOptions(model={str(checkpoint)!r}, output=Path('x.pte'), backend='portable', seq_len=16,\n"
        "    num_labels=2, rank=4, quantize='8da4w', group_size=16, rounding='clipped')\n"
        "state = build_graphs(options).methods['forward'].module.state_dict()\n"
        f"weight = load_file(Path({str(checkpoint)!r}) / 'model.safetensors')['model.layers.0.mlp.up_proj.weight']\n"
        "values = state['model.layers.0.mlp.up_proj.weight_qdata'].reshape(len(weight), -1, 16).float()\n"
        "scales = state['model.layers.0.mlp.up_proj.weight_scale'].reshape(len(weight), -1, 1)\n"
        "groups = weight.reshape(values.shape)\nreach = groups.abs().amax(-1, keepdim=True) * 0.8\n"
        "off = (values * scales - groups.clamp(-reach * 8 / 7, reach)).abs() / scales\n"
        "print(float(off.max()) < 0.52, bool((groups.abs() > reach * 1.2).any()))"
    )
    assert _python(installed, code).split() == ["True", "True"]
    assert "clipped" in _prgec(installed, "compile", "--help-all").stdout
    done = _prgec(installed, "compile", checkpoint, "--rounding", "clipped", "-o", tmp_path / "x.pte")
    assert done.returncode == 2 and "--rounding clipped needs weights to round" in done.stderr


def test_a_tracker(installed: Path, compile_once: Compile, rows: Path, tmp_path: Path) -> None:
    program, run = compile_once(**PROGRAMS["xnnpack-seeded"]), tmp_path / "run"
    done = _prgec(installed, "run", program, "--data", rows, "--steps", 3, "--out", run, "--log-to", "lines")
    assert done.returncode == 0, done.stderr
    lines = (run / "lines.txt").read_text().splitlines()
    assert lines[0] == "run" and lines[-1] == "3 steps"
    assert [line.split(":")[0] for line in lines[1:-1]] == ["step 1", "step 2", "step 3"]
    missing = _prgec(
        tmp_path, "run", program, "--data", rows, "--steps", 3, "--out", tmp_path / "x", "--log-to", "lines"
    )
    assert missing.returncode == 2 and "lines" in missing.stderr


def test_a_reward(installed: Path) -> None:
    code = (
        "from prgec.runtime.rewards.builtin import BUILTINS\nfrom prgec.runtime.rewards.source import parse_rewards\n"
        "(source,) = parse_rewards(['polite:danke'])\nrow = BUILTINS[source.name]\n"
        "print(row.score('Danke!', {}, source.argument), row.score('no', {}, source.argument))"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1.0", "0.0"]


def _python(installed: Path, code: str) -> str:
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_task_and_a_reader(installed: Path, compile_once: Compile, tmp_path: Path) -> None:
    """Rows of a format that prgec does not know become prompts of a task that it does not know."""
    program, rows = compile_once(**PROGRAMS["xnnpack-seeded"]), tmp_path / "mails.toml"
    rows.write_text('[[rows]]\nmail = "a b"\nsubject = "c"\n[[rows]]\nmail = "b a"\nsubject = "d"\n')
    shown = _prgec(installed, "data", "show", rows, "--model", program, "--task", "subject")
    assert shown.returncode == 0, shown.stderr
    done = _prgec(installed, "run", program, "--data", rows, "--task", "subject", "--steps", 2, "--out", tmp_path / "x")
    assert done.returncode == 0 and "task subject" in done.stderr and "mails.toml (toml)" in done.stderr
    code = (
        "from pathlib import Path\nfrom prgec.core.data.dataset import load_dataset\n"
        f"rows = load_dataset(Path({str(rows)!r}), 'subject')\n"
        "print([(each.prompt, each.completion) for each in rows.examples])"
    )
    assert _python(installed, code).strip() == r"[('a b\nSubject:', ' c'), ('b a\nSubject:', ' d')]"
    rows.write_text("rows = 3")
    broken = _prgec(installed, "run", program, "--data", rows, "--task", "subject", "--out", tmp_path / "y")
    assert broken.returncode == 4 and "read_toml cannot read it" in broken.stderr
    assert broken.stderr.count("\n") == 1


def test_an_objective(installed: Path) -> None:
    """Its slope is that of its loss, by autograd of the formula as the paper has it."""
    code = (
        "import numpy as np, torch\nfrom prgec.runtime.training.objectives import OBJECTIVES, Answers, Numbers\n"
        "logp = torch.tensor([-1.0, -2.0, -3.0, -2.5], dtype=torch.float64, requires_grad=True)\n"
        "ref = torch.tensor([-1.5, -1.0, -3.0, -2.0], dtype=torch.float64)\n"
        "gain = logp - ref\nloss = ((gain[0::2] - gain[1::2] - 1 / (2 * 0.25)) ** 2).mean()\nloss.backward()\n"
        "answers = Answers(logp.detach().numpy(), np.ones(4), ref.numpy(), np.array([True, False] * 2))\n"
        "judged = OBJECTIVES['ipo'].judge(answers, Numbers(beta=0.25))\n"
        "print(abs(judged.loss - float(loss)) < 1e-12, np.allclose(judged.slope, logp.grad.numpy(), rtol=1e-12))"
    )
    assert _python(installed, code).split() == ["True", "True"]
    assert "ipo" in _prgec(installed, "run", "--help-all").stdout


@pytest.mark.parametrize(
    ("group", "command"),
    [
        ("prgec.tasks", ["data", "show", "x.jsonl", "--model", "demo"]),
        ("prgec.objectives", ["run", "--help"]),
        ("prgec.backends", ["compile", "demo", "--backend", "mine", "-o", "x.pte"]),
        ("prgec.quantizers", ["compile", "demo", "--quantize", "8da4w", "--rounding", "mine", "-o", "x.pte"]),
        ("prgec.rewards", ["run", "{program}", "--reward", "mine", "--data", "{rows}", "--out", "{out}"]),
        ("prgec.trackers", ["run", "{program}", "--log-to", "mine", "--data", "{rows}", "--out", "{out}"]),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_named(
    group: str, command: list[str], compile_once: Compile, rows: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no such thing')\n")
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nmine = broken:IT\n")
    program = compile_once(
        backend="xnnpack", method="exact", label_weights=True, generate=True, context=32, rollouts=2, batch_size=2
    )
    names = {"program": str(program), "rows": str(rows), "out": str(tmp_path / "run")}
    done = _prgec(tmp_path, *(each.format(**names) for each in command))
    assert done.returncode == 2 and done.stderr.count("error: ") == 1, done.stderr
    assert f"broken:IT cannot be imported: no such thing ({group})" in done.stderr
    assert "pip uninstall broken" in done.stderr

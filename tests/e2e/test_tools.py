"""The commands around a compiled program: compile's report, inspect without torch, passes on a saved graph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prgec.cli.main import main
from prgec.core.contract.inspection import inspect_program
from prgec.core.contract.pte import read_pte
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.open import open_pte
from tests.e2e.conftest import PROGRAMS, Compile

REQUIRED = ("contract_version", "backend", "q", "batch_size", "seq_len", "sites", "delegates", "cpu_ops", "file_bytes")


@pytest.fixture(scope="session")
def xnnpack(compile_once: Compile) -> Path:
    return compile_once(**PROGRAMS["xnnpack-seeded"])


@pytest.fixture(scope="session")
def saved_graph(compile_once: Compile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "graph.pt2"
    compile_once(backend="portable", q=1, batch_size=1, seq_len=8, num_labels=1, save_program=path)
    return path


def _json(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main(list(argv)) == 0
    return json.loads(capsys.readouterr().out)


def test_inspect_json_has_the_keys_others_rely_on(xnnpack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, "inspect", str(xnnpack), "--json")
    assert [key for key in REQUIRED if key not in document] == []
    assert (document["contract_version"], document["backend"], document["q"]) == (1, "xnnpack", 2)
    assert document["file_bytes"] == xnnpack.stat().st_size
    assert all({"op", "count", "reason"} <= set(row) for row in document["cpu_ops"])


def test_the_forward_is_one_delegate(xnnpack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = _json(capsys, "inspect", str(xnnpack), "--json")
    assert [row["backend"] for row in document["delegates"]] == ["XnnpackBackend"]
    outside = {row["op"] for row in document["cpu_ops"]}
    assert not outside & {"aten.linear", "aten.bmm", "aten.mm", "aten._softmax", "aten.view", "aten.permute"}


def test_inspect_agrees_with_the_runtime(xnnpack: Path) -> None:
    inspection, program = inspect_program(xnnpack), open_pte(xnnpack)
    assert inspection.manifest == program.manifest
    assert inspection.state_bytes == sum(value.nbytes for value in program.read_state().values())


def test_inspect_imports_neither_torch_nor_executorch(xnnpack: Path) -> None:
    script = (
        "import sys; from prgec.cli.main import main; main(['inspect', sys.argv[1]]);"
        "print([name for name in ('torch', 'executorch', 'transformers') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script, str(xnnpack)], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_readable_summary_names_reasons(xnnpack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(xnnpack)]) == 0
    out = capsys.readouterr().out
    assert "1  XnnpackBackend" in out and "the f32 loss" in out and "method apply" in out


@pytest.mark.parametrize("kept", [0, 7, 40, 500, 5000])
def test_a_cut_file_is_refused_in_one_line(xnnpack: Path, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.pte"
    path.write_bytes(xnnpack.read_bytes()[:kept])
    with pytest.raises(ProgramError) as caught:
        inspect_program(path)
    assert "\n" not in str(caught.value)


def test_flipped_bytes_never_escape_as_other_errors(xnnpack: Path, tmp_path: Path) -> None:
    original, path = bytearray(xnnpack.read_bytes()), tmp_path / "damaged.pte"
    size = read_pte(xnnpack).file_bytes
    for position in range(0, min(size, 30_000), 331):
        damaged = original.copy()
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            inspect_program(path)
        except ProgramError:
            continue


def test_another_contract_version_is_refused(xnnpack: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.pte"
    path.write_bytes(xnnpack.read_bytes().replace(b"prgec_contract_version", b"prgec_contract_versiom"))
    with pytest.raises(ProgramError, match="has no prgec manifest"):
        inspect_program(path)


def test_opt_without_passes_prints_the_graph(saved_graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(saved_graph)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("graph(tokens: i64[2, T], label_pos: i64[2, 1], targets: i64[2, 1]):")
    assert "aten.scaled_dot_product_attention" in out


def test_opt_runs_saves_and_reads_back(saved_graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "result.pt2"
    assert main(["opt", str(saved_graph), "-p", "canonicalize,fold-constants", "-o", str(result)]) == 0
    capsys.readouterr()
    document = _json(capsys, "opt", str(result), "-p", "lower-sdpa", "--json")
    assert "aten.scaled_dot_product_attention" not in document["graph"]
    assert document["passes"][0].startswith("lower-sdpa: 1 hits")


def test_opt_says_why(saved_graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Without fold-constants the causal mask is computed, not constant.
    assert main(["opt", str(saved_graph), "-p", "canonicalize,lower-sdpa", "--why", "lower-sdpa"]) == 0
    assert "its mask is neither a constant [T, T]" in capsys.readouterr().out


def test_opt_lists_passes_without_a_graph(capsys: pytest.CaptureFixture[str]) -> None:
    from prgec.passes import PASSES

    assert main(["opt", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(PASSES)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["opt"], "no graph to run passes on"),
        (["opt", "missing.pt2"], "no such graph (missing.pt2)"),
        (["opt", "{graph}", "-p", "fuse"], "there is no pass called 'fuse'"),
        (["opt", "{graph}", "-p", "fold-constants,canonicalize"], "the passes are in the wrong order"),
        (["inspect", "missing.pte"], "no such program (missing.pte)"),
        (["inspect", "{graph}"], "not an ExecuTorch program"),
        (["compile", "{folder}", "--q", "0"], "--q is 0; expected at least 1"),
        (["compile", "{folder}", "--seq-len", "8", "--label-tokens", "8"], "expected less than --seq-len 8"),
        (["compile", "{folder}", "-o", "nowhere/m.pte"], "the folder of the output does not exist"),
        (["compile", "{folder}", "-o", "m.pte"], "the folder has no config.json"),
    ],
)
def test_bad_input_is_one_line(
    argv: list[str], message: str, saved_graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"graph": str(saved_graph), "folder": str(tmp_path)}
    assert main([each.format(**names) for each in argv]) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and message in captured.err

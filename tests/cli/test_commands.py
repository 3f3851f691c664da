"""`prgec run`, `eval` and `predict` as a user types them, in processes of their own."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from prgec.cli.main import main
from prgec.core.contract.checksums import append_checksums
from prgec.core.contract.layout import part_starts
from prgec.core.formats.adapter import save_adapter
from prgec.errors import ProgramError
from prgec.runtime.engines.executorch.open import open_pte

REPOSITORY = Path(__file__).parents[2]


def _prgec(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "prgec", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )


@pytest.fixture(scope="module")
def run_folder(tiny_pte: Path, train_jsonl: Path, dev_jsonl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    result = _prgec("run", tiny_pte, "--data", train_jsonl, "--eval-data", dev_jsonl, "--steps", 40, "--out", out)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"  run folder  {out}"
    assert len(result.stdout.splitlines()) < 24
    assert "accuracy" in result.stdout
    assert "step 40/40" in result.stderr
    return out


def test_run_and_eval_agree(tiny_pte: Path, dev_jsonl: Path, run_folder: Path) -> None:
    result = _prgec("eval", tiny_pte, "--data", dev_jsonl, "--adapter", run_folder / "adapter.safetensors", "--json")
    assert result.returncode == 0
    document = json.loads(result.stdout)
    summary = json.loads((run_folder / "run.json").read_text())
    assert {"steps", "loss", "accuracy", "seconds", "state_sha256"} <= set(document)
    assert document["state_sha256"] == summary["state_sha256"]
    assert document["accuracy"] == summary["accuracy"]
    assert document["loss"] == pytest.approx(summary["eval_loss"])


def test_adapters_take_turns_in_one_program(
    tiny_pte: Path, dev_jsonl: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each scores as it does alone, in any order, and its loading time is reported."""
    trained, untrained = run_folder / "adapter.safetensors", tmp_path / "zero.safetensors"
    save_adapter(untrained, open_pte(tiny_pte))
    evaluate = ("eval", tiny_pte, "--data", dev_jsonl, "--json")
    alone = [_call(capsys, *evaluate, *more)[1] for more in ([], ["--adapter", trained])]
    turns = [flag for each in (trained, untrained, trained) for flag in ("--adapter", each)]
    code, document, _ = _call(capsys, *evaluate, *turns)
    assert code == 0
    found = document["adapters"]
    assert [each["adapter"] for each in found] == [str(trained), str(untrained), str(trained)]
    assert [each["loss"] for each in found] == [alone[1]["loss"], alone[0]["loss"], alone[1]["loss"]]
    assert alone[0]["loss"] != alone[1]["loss"] and "adapters" not in alone[1]
    assert all(0.0 < each["swap_ms"] < 1000.0 for each in found)
    code, document, _ = _call(capsys, "predict", tiny_pte, "--text", "the film is great", "--json", *turns)
    states = [each["state_sha256"] for each in document["adapters"]]
    assert code == 0 and states[0] == states[2] != states[1]
    code, text, _ = _call(capsys, "predict", tiny_pte, "--text", "the film is great", *turns)
    assert text.count("put in within") == 3


def test_an_adapter_that_does_not_fit_ends_the_turns(
    tiny_pte: Path, dev_jsonl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"nothing")
    code, out, err = _call(capsys, "eval", tiny_pte, "--data", dev_jsonl, "--adapter", bad, "--adapter", bad)
    assert (code, out) == (5, "") and "error: not an adapter" in err


def test_run_json_is_the_only_thing_on_stdout(tiny_pte: Path, train_jsonl: Path, tmp_path: Path) -> None:
    result = _prgec("run", tiny_pte, "--data", train_jsonl, "--steps", 3, "--out", tmp_path / "o", "--json")
    document = json.loads(result.stdout)
    assert document["steps"] == 3
    assert document["run"] == str(tmp_path / "o")
    assert document["accuracy"] is None
    assert {"steps", "loss", "accuracy", "seconds", "state_sha256"} <= set(document)


def _call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any, str]:
    code = main([*map(str, arguments)])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out.startswith("{") else out, err


def test_texts_become_prompts_as_the_rows_that_an_adapter_learnt(
    tiny_pte: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The oracle is the same text as a row of a file whose task is named."""
    own, sentences, text = tmp_path / "own.toml", tmp_path / "sentences.csv", "the film is great"
    own.write_text(
        'template = "{sentence} So"\ncandidates = [" great", " dull"]\nanswer_field = "label"\n'
        "labels = { 0 = 0, 1 = 1 }\n"
    )
    sentences.write_text("sentence,label\nthe film is great,1\na dull plot,0\n")
    for task in ("sst2", str(own)):
        run = tmp_path / f"run-{Path(task).stem}"
        flags = ("--task", task, "--steps", 2, "--out", run)
        assert main([*map(str, ("run", tiny_pte, "--data", sentences, *flags))]) == 0
        capsys.readouterr()
        given = ("predict", tiny_pte, "--adapter", run, "--json")
        _, expected, _ = _call(capsys, *given, "--data", sentences, "--task", task)
        _, found, _ = _call(capsys, *given, "--text", text)
        assert found["predictions"][0] == expected["predictions"][0]
        _, found, _ = _call(capsys, *given[:3], run / "adapter.safetensors", "--json", "--data", sentences)
        assert found["predictions"] == expected["predictions"]


def test_a_text_alone_is_not_guessed_at(tiny_pte: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = _call(capsys, "predict", tiny_pte, "--text", "the film is great")
    assert code == 2 and "does not say how it becomes a prompt. Hint: name the --task" in error


def test_predict_texts(tiny_pte: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, _ = _call(
        capsys, "predict", tiny_pte, "--task", "sst2", "--text", "the film is great", "--text", "dull plot", "--json"
    )
    assert code == 0
    assert document["candidates"] == [" terrible", " great"]
    assert [p["prompt"] for p in document["predictions"]] == ["the film is great It was", "dull plot It was"]
    assert all(p["completion"] == min(p["losses"], key=p["losses"].get) for p in document["predictions"])


def test_predict_own_candidates(tiny_pte: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, _ = _call(
        capsys,
        "predict",
        tiny_pte,
        "--text",
        "the film is",
        "--candidate",
        " great",
        "--candidate",
        " lovely",
        "--json",
    )
    assert code == 0
    assert document["predictions"][0]["prompt"] == "the film is"
    assert set(document["predictions"][0]["losses"]) == {" great", " lovely"}


def test_predict_file_for_people(tiny_pte: Path, dev_jsonl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = _call(capsys, "predict", tiny_pte, "--data", dev_jsonl)
    assert code == 0
    assert len(text.splitlines()) == 37
    assert {line.split("\t")[0] for line in text.splitlines()} <= {"great", "terrible"}


def test_truncation_warns_once(tiny_pte: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "long.jsonl"
    rows.write_text(3 * (json.dumps({"sentence": 20 * "the film ", "label": 1}) + "\n"))
    code, _, err = _call(capsys, "eval", tiny_pte, "--data", rows, "--json")
    assert code == 0
    assert (
        err.count(
            "warning: 6 of 6 rows are longer than T = 24, the longest has 43 tokens: cut from the left of the prompt"
        )
        == 1
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "error: the data file is empty ("),
        ('{"sentence": "x", "label": 1}\n{', "error: invalid JSON: "),
        ('{"sentence": "x"}', 'error: missing field "label": found sentence; task sst2 needs sentence, label ('),
        ('{"sentence": "x", "label": 7}', "error: unknown label 7 for task sst2 ("),
        (
            '{"prompt": "x", "completion": " great great great"}',
            "error: 1 of 1 completions have more tokens than the program's K = 2 label positions; the longest has 4 (",
        ),
    ],
)
def test_bad_rows_are_one_line(
    tiny_pte: Path, tmp_path: Path, rows: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(rows)
    code, out, err = _call(capsys, "run", tiny_pte, "--data", path, "--out", tmp_path / "o")
    assert (code, out) == (4, "")
    assert err.splitlines()[-1].startswith(message)
    # If rows can be read at all, the task is printed first.
    assert err.count("\n") <= 2
    assert not (tmp_path / "o").exists()


def test_bad_program_is_one_line(train_jsonl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _call(capsys, "run", train_jsonl, "--data", train_jsonl)
    assert (code, out) == (5, "")
    assert err.splitlines()[-1].startswith("error: not an ExecuTorch program (")
    assert err.count("\n") == 1


def test_divergence_has_its_exit_code(
    tiny_pte: Path, train_jsonl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _call(
        capsys, "run", tiny_pte, "--data", train_jsonl, "--lr", "1e38", "--estimator", "plain", "--out", tmp_path / "o"
    )
    assert (code, out) == (8, "")
    assert "is not finite; training stopped, state kept (" in err.splitlines()[-1]


def test_predict_needs_exactly_one_source(tiny_pte: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _call(capsys, "predict", tiny_pte)[0] == 2
    assert _call(capsys, "predict", tiny_pte, "--text", "a", "--data", "b")[0] == 2


def test_ctrl_c_finishes_the_step_and_writes_the_folder(tiny_pte: Path, train_jsonl: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    command = [
        sys.executable,
        "-m",
        "prgec",
        "run",
        tiny_pte,
        "--data",
        train_jsonl,
        "--steps",
        10**7,
        "--out",
        out,
        "--json",
    ]
    process = subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    metrics = out / "metrics.partial.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping after this step" in stderr
    document = json.loads(stdout)
    assert document["interrupted"]
    assert 0 < document["steps"] < 10**7
    assert {p.name for p in out.iterdir()} == {
        "adapter.safetensors",
        "journal.bin",
        "metrics.jsonl",
        "plot.png",
        "run.json",
        "run.toml",
    }
    assert len((out / "metrics.jsonl").read_text().splitlines()) == document["steps"]


def test_a_damaged_program_is_refused_in_one_line(
    tiny_pte: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights of the model with other bits, which only the checksums know."""
    path = tmp_path / "damaged.pte"
    shutil.copy(tiny_pte, path)
    append_checksums(path, None)
    arguments = ["predict", str(path), "--text", "a film", "--task", "sst2", "--json"]
    assert main(arguments) == 0
    good = capsys.readouterr().out
    data = bytearray(path.read_bytes())
    start = dict((name, place) for place, name in reversed(part_starts(tiny_pte)))["constants"]
    for place in range(start + 2, start + 20_000, 4):
        data[place] ^= 0x40
    path.write_bytes(data)
    assert main(arguments) == ProgramError.exit_code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("error: the program is damaged: constants, bytes ") and "not as compiled" in err
    assert main([*arguments, "--no-verify"]) == 0
    assert capsys.readouterr().out != good

"""Help is light, and every failure is one line and one exit code."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from prgec import __version__, errors
from prgec.cli import main as cli_main
from prgec.cli.main import COMMANDS, Subcommand, main

REPOSITORY = Path(__file__).parents[2]
LIGHT_COMMANDS = (
    "plan",
    "compile",
    "data",
    "tokenize",
    "run",
    "probe",
    "replay",
    "export",
    "report",
    "eval",
    "predict",
    "chat",
    "inspect",
    "opt",
    "demo",
    "bench",
    "cache",
    "doctor",
    "study",
    "side",
    "ui",
)


def _python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], *([name, "--help"] for name in LIGHT_COMMANDS), ["side", "audit", "--help"]],
)
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    script = (
        "import sys; from prgec.cli.main import main; code = main(sys.argv[1:]);"
        "print(code, [m for m in ('torch', 'executorch', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    result = _python("-c", script, *arguments)
    assert result.stdout.splitlines()[-1] == "0 []"
    assert result.stderr == ""


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_no_arguments_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("Usage: prgec") and "\n  compile " in printed.out
    assert printed.err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "error: there is no command 'fly' (see prgec --help)\n"),
        (["trian"], "error: there is no command 'trian'. Did you mean prgec run? (see prgec --help)\n"),
        (["run"], "error: Missing argument 'PROGRAM'. (see prgec run --help)\n"),
        (["run", "m.pte"], "error: a run needs either --data or --rows\n"),
        (
            ["run", "m.pte", "--data", "x", "--steps", "many"],
            "error: Invalid value for '--steps': 'many' is not a valid integer. (see prgec run --help)\n",
        ),
        (
            ["run", "m.pte", "--data", "x", "--data", "y"],
            "error: --data is given twice. Hint: it takes one value: leave the others out\n",
        ),
        (
            ["data", "stats", "x", "--task", "sst2", "--task", "rte"],
            "error: --task is given twice. Hint: it takes one value: leave the others out\n",
        ),
        (["eval", "m.pte", "--data", "x", "--quick"], "error: No such option '--quick'. (see prgec eval --help)\n"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", message)


def _raising(error: BaseException) -> click.Command:
    @click.command()
    def fail() -> int:
        raise error

    return fail


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Make `prgec fail` raise a given error."""

    def install(error: BaseException) -> None:
        monkeypatch.setitem(COMMANDS, "fail", Subcommand("prgec.cli.main:FAIL", "Fail."))
        monkeypatch.setattr(cli_main, "FAIL", _raising(error), raising=False)

    return install


ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.PrgecError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_each_error_has_its_exit_code(
    kind: type[errors.PrgecError], failing, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(kind("the disk\nis square", where="disk.py:1", hint="use a round one"))
    assert main(["fail"]) == kind.exit_code
    assert capsys.readouterr() == ("", "error: the disk is square (disk.py:1). Hint: use a round one\n")


def test_exit_codes_are_distinct() -> None:
    assert len({kind.exit_code for kind in ERRORS}) == len(ERRORS)


def test_unexpected_error_asks_for_a_report(failing, capsys: pytest.CaptureFixture[str]) -> None:
    failing(KeyError("sprocket"))
    assert main(["fail"]) == 70
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "error: KeyError: 'sprocket' (this is a bug in prgec, please report with the output of the same "
        "command under PRGEC_DEBUG=1)\n"
    )


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_debug_shows_the_traceback(
    how: str, failing, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(errors.DataError("bad row"))
    if how == "variable":
        monkeypatch.setenv("PRGEC_DEBUG", "1")
    assert main(["--debug", "fail"] if how == "flag" else ["fail"]) == errors.DataError.exit_code
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: bad row\n")


def test_debug_does_not_leak_into_the_next_call(failing, capsys: pytest.CaptureFixture[str]) -> None:
    failing(errors.DataError("bad row"))
    main(["--debug", "fail"])
    capsys.readouterr()
    main(["fail"])
    assert capsys.readouterr().err == "error: bad row\n"


def test_full_disk_is_not_a_bug(failing, capsys: pytest.CaptureFixture[str]) -> None:
    failing(OSError(errno.ENOSPC, "No space left on device", "run.json"))
    assert main(["fail"]) == 1
    assert capsys.readouterr().err.startswith("error: No space left on device (run.json). Hint: make room there")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_interrupt(error: BaseException, failing, capsys: pytest.CaptureFixture[str]) -> None:
    failing(error)
    assert main(["fail"]) == 130
    # click ends the terminal's ^C line first.
    assert capsys.readouterr().err.lstrip("\n") == "error: interrupted\n"


def test_closed_pipe_is_silent() -> None:
    command = f"{sys.executable} -m prgec run --help | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert result.stderr == ""


def test_table_names_real_commands() -> None:
    for name in LIGHT_COMMANDS:
        command = cli_main.cli.get_command(click.Context(cli_main.cli), name)
        assert command is not None and command.name == name
        assert command.help


def test_words_of_other_tools_are_commands() -> None:
    context = click.Context(cli_main.cli)
    for word, name in cli_main.ALIASES.items():
        assert cli_main.cli.get_command(context, word) is cli_main.cli.get_command(context, name)


def test_flags_are_frozen() -> None:
    """A flag that disappears breaks scripts: change this list only together with the changelog."""
    found = {}
    for name in LIGHT_COMMANDS:
        command = cli_main.cli.get_command(click.Context(cli_main.cli), name)
        assert command is not None
        parts = command.commands if isinstance(command, click.Group) else {"": command}
        for part, each in parts.items():
            options = [flag for p in each.params if isinstance(p, click.Option) for flag in p.opts]
            found[f"{name} {part}".strip()] = " ".join(sorted(options))
    assert json.loads(json.dumps(found)) == {
        "plan": "--all --backend --bench --calibrate --chart --context --data --driver --html --json --label-tokens "
        "--memory --rollouts --seq-len --steps --time --watts",
        "compile": "--a-seed --accumulate --alpha --backend --batch-size --candidate --clip-norm --config --context "
        "--data --dtype --dump-passes --emit-driver --force --generate --group-size --help-all --ignore-memory --json "
        "--label-tokens --label-weights --layers --lora-a --lowering --map --memory --method --no-cache --no-eos "
        "--optimizer --output --passes --polyak --prefix --q --quantize --quantize-cache "
        "--quantize-embedding --rank --recompute --rng --rollouts --rounding --save-program --seq-len --soc --state "
        "--static --targets --task --weight-decay -c -o",
        "inspect": "--bom --check --config --data --json --model --reproduce",
        "doctor": "--json",
        "cache list": "--folder --json",
        "cache clear": "--folder --json --older-than",
        "opt": "--dump-passes --force --json --list --output --passes --why -o -p",
        "data stats": "--batch-size --generate --json --map --model --no-eos --seq-len --task",
        "data show": "--json --map --model --no-eos --task -n",
        "tokenize": "--force --json --map --no-eos --output --task -o",
        "run": "--accumulate --adapter --base --beta --clip --config --data --desirable --device --diverged "
        "--dp-clip --dp-delta --dp-epsilon --early-stop --engine --eps --estimator --eval-data --eval-every "
        "--eval-rows --force --gamma --help-all --ignore-memory --init-adapter --json "
        "--log-to --low-volume --lr --lr-probe --lr-schedule --map "
        "--max-g --max-new-tokens --no-eos --no-verify --not-finite --num-generations --num-iterations --objective "
        "--out --over-limit --prefix-cache --resume --reward --reward-memory --reward-network --reward-timeout "
        "--rows --seed --snapshot-every --steps --task --temperature --top-k --top-p --torch-compile "
        "--undesirable --warmup --window -c",
        "probe": "--accumulate --adapter --base --config --data --device --engine --eps --estimator --eval-data "
        "--eval-rows --ignore-memory --init-adapter --json --low-volume --lr --map --max-g --no-eos --no-verify "
        "--not-finite --over-limit --prefix-cache --rows --seed --steps --task --torch-compile -c",
        "study": "--data --forward-rows --json --lr --model --on --only --out --preset --seeds",
        "replay": "--adapter --force --json --no-verify --output --program --signers --step -o",
        "export": "--base --data --format --json --output --program -o",
        "report": "--force --json --output --side -o",
        "ui": "--port --program",
        "eval": "--adapter --data --json --key --map --max-new-tokens --no-eos --no-verify --reward --side --task",
        "predict": "--adapter --candidate --data --generate --json --key --map --no-verify --side --task --text",
        "chat": "--adapter --compare --feedback --max-tokens --no-verify --seed --stop --system --temperature --think "
        "--top-k --top-p",
        "demo": "--backend --estimator --json --lr --method --out --seed --steps",
        "bench step": "--against-plan --backend --batch-size --json --layers --out --preset --q --quantize "
        "--quantize-embedding --repeats --seq-len --variants",
        "bench compile": "--json --layers --out --routes",
    }


def test_flags_of_side_are_frozen() -> None:
    group = cli_main.cli.get_command(click.Context(cli_main.cli), "side")
    assert isinstance(group, click.Group)
    context = click.Context(group)
    found = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None and command.help
        options = [flag for p in command.params if isinstance(p, click.Option) for flag in p.opts]
        found[name] = " ".join(sorted(options))
    assert found == {
        "emit": "--ca --data --dtype --json --key --label-dp --no-verify --output --server --shard-rows --task "
        "--token-file --y-pre -o",
        "fit": "--batch-size --early-stop --epochs --force --held-out --json --lr --no-norm --output --rank --resume "
        "--seed --weight-decay -o",
        "build": "--backend --batch-size --force --json --output -o",
        "audit": "--data --json --key --known --no-verify --program --task",
        "serve": "--host --port --store --tls-cert --tls-key",
        "token": "--quota-mb --store",
        "push": "--ca --early-stop --epochs --json --lr --no-train --rank --seed --server --token-file",
        "pull": "--ca --force --output --server --token-file --wait -o",
        "forget": "--ca --server --token-file",
    }


def test_a_mistyped_model_is_told_before_torch_is_imported() -> None:
    script = (
        "import sys; from prgec.cli.main import main; code = main(['compile', 'tinylama', '-o', 'm.pte']);"
        "print(code, 'torch' in sys.modules)"
    )
    result = _python("-c", script)
    assert result.stdout.split() == [str(errors.CheckpointError.exit_code), "False"]
    assert "there is no folder, alias or hub id 'tinylama'" in result.stderr

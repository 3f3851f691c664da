"""Entry point of the command line: the table of subcommands, and the one place where errors become exit codes."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from prgec.cli.habits import hint_for
from prgec.cli.machine_faults import describe
from prgec.cli.repeats import refuse_repeats
from prgec.core.machine.extras import missing_compiler
from prgec.core.machine.quiet import DEBUG_VARIABLE, is_debug, quiet_libraries
from prgec.core.machine.versions import version_of
from prgec.errors import InternalError, PrgecError

INTERRUPTED_EXIT_CODE = 130
_CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


class Subcommand(NamedTuple):
    """One row of the command table.

    Attributes:
        target: `module:attribute` of the click command, imported only when the command is used.
        summary: The line `prgec --help` shows, kept here so that help imports nothing heavy.
    """

    target: str
    summary: str


COMMANDS: dict[str, Subcommand] = {
    "demo": Subcommand("prgec.cli.demo:demo", "Compile the bundled model, train it, show accuracy before and after."),
    "plan": Subcommand("prgec.cli.plan:plan", "Say what fits a device, how long it takes, and which command to type."),
    "compile": Subcommand("prgec.cli.compile:compile_command", "Compile a checkpoint into a .pte that trains itself."),
    "data": Subcommand("prgec.cli.data:data", "Say what a data file asks of a program: lengths, padding, answers."),
    "tokenize": Subcommand("prgec.cli.tokenize:tokenize", "Turn a jsonl file into rows that need no tokenizer."),
    "run": Subcommand("prgec.cli.run:run", "Train a compiled program on a jsonl file."),
    "probe": Subcommand("prgec.cli.probe:probe", "Try learning rates on a program, and say which one to take."),
    "replay": Subcommand("prgec.cli.replay:replay", "Rebuild the adapter of any step from a run's journal."),
    "export": Subcommand("prgec.cli.export:export", "Write an adapter for PEFT or llama.cpp, or a merged checkpoint."),
    "report": Subcommand("prgec.cli.report:report", "Turn a run into one HTML page, or compare several on one."),
    "ui": Subcommand("prgec.cli.ui:ui", "Show runs in a browser, start and stop them, and try what they learnt."),
    "side": Subcommand("prgec.cli.side:side", "Learn a small network beside a program, on a server: emit, fit, build."),
    "federate": Subcommand("prgec.cli.federate:federate", "Train one adapter on many devices: serve, join, status."),
    "eval": Subcommand("prgec.cli.eval:eval_command", "Measure loss and accuracy of a compiled program."),
    "predict": Subcommand("prgec.cli.predict:predict", "Choose the most likely answer for each row or text."),
    "chat": Subcommand("prgec.cli.chat:chat", "Talk to a program compiled with --generate --context."),
    "inspect": Subcommand("prgec.cli.inspect:inspect_command", "Show what is inside a .pte: sites, delegates, sizes."),
    "bench": Subcommand("prgec.cli.bench:bench", "Measure a training step against what it replaces."),
    "cache": Subcommand("prgec.cli.cache:cache", "List or clear compiled programs and packed weights."),
    "doctor": Subcommand("prgec.cli.doctor:doctor", "Report what works on this machine, and what is missing."),
    "study": Subcommand("prgec.cli.study:study", "Compare ways to train over seeds at equal forward passes."),
    "completion": Subcommand("prgec.cli.completion:completion", "Print what a shell needs to complete commands."),
    "opt": Subcommand("prgec.cli.opt:opt", "Run graph passes on a saved program and print the result."),
}


# Words of other tools for commands of this one.
ALIASES = {"train": "run", "finetune": "run", "fine-tune": "run", "evaluate": "eval", "generate": "predict"}


class LazyGroup(click.Group):
    """A click group whose subcommands are imported on first use, from `COMMANDS` only."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table: the order a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one subcommand, or None when the table has no such name."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        # Before the import: libraries decide how loud they are when they load.
        _prepare_output()
        module, attribute = COMMANDS[cmd_name].target.split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), COMMANDS[cmd_name].target
        command.context_settings = {**_CONTEXT_SETTINGS, **command.context_settings}
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; answer a wrong word with the nearest ones, and refuse options that are given twice."""
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.UsageError as error:
            words = difflib.get_close_matches(args[0], [*COMMANDS, *ALIASES], n=2, cutoff=0.6)
            names = dict.fromkeys(ALIASES.get(word, word) for word in words)
            hint = f". Did you mean {' or '.join(f'prgec {name}' for name in names)}?" if names else ""
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx) from error
        if command is not None:
            refuse_repeats(command, rest, ctx)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command list from the table's summaries, without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])


def _set_debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        os.environ[DEBUG_VARIABLE] = "1"


@click.group(cls=LazyGroup, context_settings=_CONTEXT_SETTINGS)
@click.version_option(version_of("prgec"), prog_name="prgec")
@click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_set_debug,
    help="Show tracebacks and library messages (also: PRGEC_DEBUG=1).",
)
def cli() -> None:
    """Compile language models into programs that fine-tune themselves by inference alone."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: Arguments without the program name; those of the process when None.

    Returns:
        0, the `exit_code` of the error class, 2 for wrong usage, 130 after Ctrl-C, 70 for a bug in prgec.
    """
    # Read when torch is loaded. Threads that spin while they wait for one another take the processor from the one they
    # wait for: beside another process, weights were rounded 150 times as slowly.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Rows are encoded by several threads as it is, and tokenizers warns of its own ones in every child process.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    arguments = sys.argv[1:] if argv is None else argv
    debug_before = os.environ.get(DEBUG_VARIABLE)
    try:
        return _run(arguments)
    finally:
        # `--debug` of one call must not leak into the next one of the same process.
        _restore_environment(DEBUG_VARIABLE, debug_before)


def _prepare_output() -> None:
    from prgec.cli.render import configure_logging

    quiet_libraries()
    configure_logging(debug=is_debug())


def _run(arguments: Sequence[str]) -> int:
    try:
        result: Any = cli.main(args=list(arguments), prog_name="prgec", standalone_mode=False)
    except BrokenPipeError:
        # The reader of our stdout went away (`prgec eval --json | head`); keep the interpreter from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, click.Abort):
        _print_error("interrupted")
        return INTERRUPTED_EXIT_CODE
    except Exception as error:  # the single place where any failure becomes text and a code
        return _report(error)
    return result if isinstance(result, int) else 0


def _report(error: Exception) -> int:
    if is_debug():
        traceback.print_exception(error)
    if isinstance(error, ModuleNotFoundError):
        error = missing_compiler(error) or error
    if isinstance(error, PrgecError):
        _print_error(str(error))
        return error.exit_code
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        sys.stdout.write(error.format_message() + "\n")
        return error.exit_code
    if isinstance(error, click.ClickException):
        _print_error(_usage_text(error))
        return error.exit_code
    if isinstance(error, OSError) and (text := describe(error)) is not None:
        _print_error(text)
        return PrgecError.exit_code
    hint = "" if is_debug() else f" with the output of the same command under {DEBUG_VARIABLE}=1"
    detail = " ".join(str(error).split())
    _print_error(f"{type(error).__name__}: {detail} (this is a bug in prgec, please report{hint})")
    return InternalError.exit_code


def _usage_text(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split())
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        hint = hint_for(error.ctx.info_name or "", error.option_name)
        text = f"there is no option {error.option_name}. Hint: use {hint}" if hint else text
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{text} (see {context.command_path} --help)" if context is not None else text


def _print_error(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"error: {text}\n")
    sys.stderr.flush()


def _restore_environment(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value

"""Every command that README and the pages show exists, with every option that it is given there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from prgec.cli.main import cli
from tests.pages import COMMAND, shell_lines

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
# Where a command of a shell ends.
_ENDS = ("|", ">", "<", "&&", "||", ";", "&", "2>", "#")


def commands_of(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the arguments of each `prgec` in the code of a page, with its line."""
    for number, line in shell_lines(text):
        for found in COMMAND.finditer(line):
            yield number, list(_until_end(line[found.end() :]))


def _until_end(text: str) -> Iterator[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|><;&")
    lexer.whitespace_split, lexer.commenters = True, "#"
    for word in lexer:
        if word in _ENDS:
            return
        yield word


def _problem(arguments: list[str]) -> str | None:
    """Return what click has against a command; None where it knows all of it."""
    command: click.Command = cli
    context = click.Context(cli, info_name="prgec")
    while isinstance(command, click.Group):
        name, *arguments = arguments or [""]
        found = command.get_command(context, name)
        if found is None and "step" in getattr(command, "commands", ()):
            # `prgec bench MODEL` is short for `prgec bench step MODEL`.
            arguments, found = [name, *arguments], command.get_command(context, "step")
        if found is None:
            return f"no command {name!r}"
        command, context = found, click.Context(found, parent=context, info_name=name)
    try:
        command.make_parser(context).parse_args(list(arguments))
    except click.UsageError as error:
        # A page may leave out what every command of it has.
        return None if isinstance(error, click.MissingParameter) else error.format_message()
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    found = [(line, _problem(words)) for line, words in commands_of(page.read_text(encoding="utf-8"))]
    assert [f"{page.name}:{line}: {problem}" for line, problem in found if problem] == []


def test_enough_is_found() -> None:
    """The pages have hundreds of commands, and a wrong one is reported."""
    assert sum(len(list(commands_of(page.read_text(encoding="utf-8")))) for page in PAGES) > 100
    text = "```bash\nprgec compile demo --quantise 4 \\\n    -o x.pte | tee log\n```\n\n    prgec rum x.pte  # wrong\n"
    problems = [_problem(words) for _, words in commands_of(text)]
    assert problems[0] is not None and "--quantise" in problems[0] and problems[1] == "no command 'rum'"

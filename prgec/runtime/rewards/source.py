"""Which rewards a run has: files of the user's, built-in ones, commands, and weighted sums of them."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.errors import DataError, UsageError
from prgec.runtime.rewards.builtin import BUILTINS

PYTHON, COMMAND, BUILTIN = "python", "command", "builtin"
REWARD_HELP = (
    "What an answer is worth: a .py file with reward(prompt, answer, record), command:SHELL, one of "
    f"{', '.join(BUILTINS)} (NAME or NAME:ARGUMENT), or a .toml file of several; repeat to add (docs/feedback.md)."
)


@dataclass(frozen=True, kw_only=True)
class RewardSource:
    """One reward of a sum.

    Attributes:
        kind: `python`, `command` or `builtin`.
        name: Path of the file, text of the command, or name of the built-in one.
        argument: Argument of a built-in one.
        weight: Factor of it in the sum.
    """

    kind: str
    name: str
    argument: str = ""
    weight: float = 1.0

    def describe(self) -> str:
        """Return it as a user writes it."""
        text = f"command:{self.name}" if self.kind == COMMAND else self.name
        return f"{text}:{self.argument}" if self.argument else text


def parse_rewards(texts: Sequence[str]) -> list[RewardSource]:
    """Return the rewards that texts of the command line name.

    Raises:
        UsageError: If one names nothing known, or has a bad argument, or its package cannot be imported.
        DataError: If a file of several is damaged.
    """
    return [source for text in texts for source in _parse(text)]


def _parse(text: str) -> list[RewardSource]:
    name, colon, argument = text.partition(":")
    if colon and name == COMMAND:
        if not argument.strip():
            raise UsageError("--reward command: has no command", hint="write --reward 'command:./check.sh'")
        return [RewardSource(kind=COMMAND, name=argument)]
    if name in BUILTINS:
        return [_builtin(name, argument)]
    path = Path(text)
    if path.suffix not in (".py", ".toml"):
        raise UsageError(
            f"--reward {text!r} is not a reward", hint=f"name a .py or .toml file, command:SHELL, {', '.join(BUILTINS)}"
        )
    if not path.is_file():
        raise UsageError("the file of the reward does not exist", where=path)
    return [RewardSource(kind=PYTHON, name=text)] if path.suffix == ".py" else _read(path)


def _builtin(name: str, argument: str, weight: float = 1.0) -> RewardSource:
    row = BUILTINS[name]
    row.prepare()
    if row.needs_argument and not argument:
        raise UsageError(f"--reward {name} needs a {row.argument}", hint=f"write --reward {name}:...")
    try:
        if name == "regex":
            re.compile(argument)
        if name == "max_words" and int(argument) < 1:
            raise ValueError
    except (re.error, ValueError) as error:
        raise UsageError(f"--reward {name}:{argument} is not a {row.argument}") from error
    return RewardSource(kind=BUILTIN, name=name, argument=argument, weight=weight)


def _read(path: Path) -> list[RewardSource]:
    """Return the tables `[[reward]]` of a file: `name` or `file` or `command`, `argument`, `weight`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("reward")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"cannot read the rewards: {error}", where=path) from error
    if not isinstance(tables, list) or not tables:
        raise DataError("the file has no rewards", where=path, hint='write [[reward]], then name = "json"')
    return [_from_table(table, path) for table in tables]


def _from_table(table: Any, path: Path) -> RewardSource:
    known = {"name", "file", "command", "argument", "weight"}
    if not isinstance(table, dict) or (odd := sorted(set(table) - known)):
        raise DataError(f"a reward has {', '.join(sorted(known))}; found {odd[0]!r}", where=path)
    weight = table.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise DataError(f"the weight of a reward is {weight!r}; expected a finite number", where=path)
    kinds = [key for key in ("name", "file", "command") if isinstance(table.get(key), str)]
    if len(kinds) != 1:
        raise DataError("a reward has exactly one of name, file and command, as a text", where=path)
    named = table[kinds[0]]
    if kinds[0] == "command":
        return RewardSource(kind=COMMAND, name=named, weight=weight)
    if kinds[0] == "file":
        file = path.parent / named
        if not file.is_file():
            raise DataError(f"the file of the reward does not exist: {file}", where=path)
        return RewardSource(kind=PYTHON, name=str(file), weight=weight)
    if named not in BUILTINS:
        raise DataError(f"there is no reward {named!r}", where=path, hint=f"there are {', '.join(BUILTINS)}")
    argument = table.get("argument", "")
    keys = ",".join(map(str, argument)) if isinstance(argument, list) else str(argument)
    return _builtin(named, keys, weight)

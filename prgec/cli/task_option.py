"""Options that say how a file becomes rows: --task (a known one, `auto` or a TOML file), --map and --no-eos."""

from __future__ import annotations

from typing import Any

import click

from prgec.core.data.columns import MAP_HELP
from prgec.core.data.tasks import AUTO_TASK, NO_EOS_HELP, TASKS, TOML_SUFFIX


class _TaskType(click.ParamType[str]):
    """A task name; wrong ones are reported before anything is read."""

    name = "TASK"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name if there is such a task, or it is called like a file."""
        if value not in (AUTO_TASK, *TASKS) and not str(value).endswith(TOML_SUFFIX):
            self.fail(f"{value!r} is none of {AUTO_TASK}, {', '.join(TASKS)}, or a .toml file", param, ctx)
        return str(value)


TASK = _TaskType()
COLUMNS = click.option("--map", "columns", multiple=True, metavar="OURS=THEIRS", help=MAP_HELP)
NO_EOS = click.option("--no-eos", is_flag=True, help=NO_EOS_HELP)

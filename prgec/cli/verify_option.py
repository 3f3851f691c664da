"""The --no-verify option of commands that open a program."""

from __future__ import annotations

import click

NO_VERIFY = click.option(
    "--no-verify", is_flag=True, help="Do not compare the program with its checksums when it is opened."
)

"""`--force` of commands that write a file: without it, nothing that exists is replaced."""

from __future__ import annotations

import click

FORCE = click.option("--force", is_flag=True, help="Replace the output if it exists.")

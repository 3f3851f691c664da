"""The files of the Flower app: a project for `flwr run`, whose code is that of the installed prgec."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prgec.core.config.option import Item
from prgec.core.config.toml_file import write_options
from prgec.core.machine.files import write_atomic
from prgec.core.machine.versions import version_of
from prgec.errors import UsageError
from prgec.runtime.federated.flower.names import OPTIONS_KEY
from prgec.runtime.federated.options import FLEET_TABLE, FleetOptions

_PACKAGE = "prgec_federated"
# Flower packs an app and sends it to its nodes: they need prgec, not a copy of it.
_ENDS = {"server_app": "ServerApp", "client_app": "ClientApp"}


def write_app(folder: Path, options: Path) -> None:
    """Write the app.

    Args:
        folder: Folder of the project.
        options: File of the server's options, on the server's machine.
    """
    package = folder / _PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    write_atomic(package / "__init__.py", b'"""Federated fine-tuning by prgec."""\n')
    for module, end in _ENDS.items():
        text = f'"""The {end}."""\n\nfrom prgec.runtime.federated.flower.{module} import app\n\n__all__ = ["app"]\n'
        write_atomic(package / f"{module}.py", text.encode())
    write_atomic(folder / "pyproject.toml", _project(options).encode())


def write_project(folder: Path, options: FleetOptions) -> None:
    """Write the app with the options that it runs by, for people.

    Raises:
        UsageError: If the folder has something already.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UsageError("the folder is not empty", where=folder, hint="name another one")
    folder.mkdir(parents=True, exist_ok=True)
    write_app(folder, write_settings(folder / "federate.toml", vars(options), FLEET_TABLE))


def write_settings(path: Path, values: Mapping[str, Any], table: Sequence[Item]) -> Path:
    """Write options for a process of another working folder.

    Args:
        path: The file.
        values: Options by name.
        table: Their table.

    Returns:
        Its absolute path.
    """
    whole = {name: value.absolute() if isinstance(value, Path) else value for name, value in values.items()}
    text = write_options(whole, table, folder=None, remark="Options of prgec federate")
    write_atomic(path, text.encode())
    return path.absolute()


def _project(options: Path) -> str:
    return f"""[project]
name = "prgec-federated"
version = "{version_of("prgec")}"
description = "Federated fine-tuning by prgec"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "prgec"

[tool.flwr.app.components]
serverapp = "{_PACKAGE}.server_app:app"
clientapp = "{_PACKAGE}.client_app:app"

[tool.flwr.app.config]
{OPTIONS_KEY} = {json.dumps(str(options.absolute()), ensure_ascii=False)}
"""

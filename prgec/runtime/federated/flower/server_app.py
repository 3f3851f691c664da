"""The server's end of the Flower app: the loop of rounds over Flower's grid."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from prgec.core.config.toml_file import read_options
from prgec.core.machine.parent import end_with_parent
from prgec.errors import InternalError, PrgecError
from prgec.runtime.federated.flower.names import CONTENT, OPTIONS_KEY, RESULT_NAME, TRAIN
from prgec.runtime.federated.messages import Fields
from prgec.runtime.federated.open import Fleet
from prgec.runtime.federated.options import FLEET_TABLE, FleetOptions

app = ServerApp()


class GridExchange:
    """The devices of a Flower federation; a node is known by the id that the SuperLink gave it.

    Args:
        grid: Flower's grid.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Sequence[str]:
        """Return the ids of the nodes that are connected."""
        return [str(node) for node in self._grid.get_node_ids()]

    def ask(self, tasks: Mapping[str, Fields], timeout: float) -> Mapping[str, Fields]:
        """Send a task to each node, and return the answers that came within the time, in seconds."""
        messages = [
            Message(
                content=RecordDict({CONTENT: ConfigRecord(dict(fields))}),
                message_type=TRAIN,
                dst_node_id=int(node),
                # A device that is away for longer does not begin a task of a round that is over.
                ttl=timeout,
            )
            for node, fields in tasks.items()
        ]
        replies = self._grid.send_and_receive(messages, timeout=timeout)
        return {str(reply.metadata.src_node_id): _fields(reply) for reply in replies}


def _fields(reply: Message) -> Fields:
    """Return the fields of a reply; none where the device's app failed, which the loop refuses by name."""
    if not reply.has_content() or CONTENT not in reply.content.config_records:
        return {}
    return dict(reply.content.config_records[CONTENT])


def main(grid: Grid, context: Context) -> None:
    """Run the rounds of the options that the app's configuration names."""
    end_with_parent(os.getppid())
    path = Path(str(context.run_config[OPTIONS_KEY]))
    options = FleetOptions(**read_options(path, FLEET_TABLE))
    result: dict[str, Any] = {"error": "a bug in prgec: see flower/superlink.log", "exit_code": InternalError.exit_code}
    try:
        with Fleet(options) as fleet:
            fleet.run(GridExchange(grid))
        result = {"error": "", "exit_code": 0}
    except PrgecError as error:
        result = {"error": error.what, "where": error.where and str(error.where), "hint": error.hint}
        result["exit_code"] = error.exit_code
    finally:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / RESULT_NAME).write_text(json.dumps(result) + "\n", encoding="utf-8")


# Not as a decorator: Flower's are untyped where it is not installed.
app.main()(main)

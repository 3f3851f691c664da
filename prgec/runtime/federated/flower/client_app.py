"""The device's end of the Flower app: answers one message, in a process that Flower starts for it."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from prgec.core.config.toml_file import read_options
from prgec.core.machine.parent import end_with_parent
from prgec.errors import PrgecError
from prgec.runtime.federated.flower.names import CONTENT, OPTIONS_KEY
from prgec.runtime.federated.messages import NodeAnswer
from prgec.runtime.federated.open import open_node
from prgec.runtime.federated.options import NODE_TABLE, NodeOptions

app = ClientApp()


def train(message: Message, context: Context) -> Message:
    """Do the task of a message, and reply with the answer."""
    end_with_parent(os.getppid())
    options = NodeOptions(**read_options(Path(str(context.node_config[OPTIONS_KEY])), NODE_TABLE))
    try:
        fields = open_node(options).answer(dict(message.content.config_records[CONTENT]))
    except PrgecError as error:
        fields = NodeAnswer(device=options.name, number=0, error=str(error)).fields()
    return Message(content=RecordDict({CONTENT: ConfigRecord(fields)}), reply_to=message)


# Not as a decorator: Flower's are untyped where it is not installed.
app.train()(train)

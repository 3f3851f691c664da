"""Names that the ends of the Flower app and the processes around it share."""

from __future__ import annotations

# Port of a server; devices look for it there.
DEFAULT_PORT = 9092
# Key of the app's configuration, and of a node's: the file of the options.
OPTIONS_KEY = "options"
# Flower's type of a message, and the name of its one record.
TRAIN, CONTENT = "train", "prgec"
# The outcome of a server's run; written last.
RESULT_NAME = "result.json"

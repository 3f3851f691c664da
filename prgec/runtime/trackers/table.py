"""The trackers there are, by the name `--log-to` gives them; none is imported before it is used."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable

from prgec.core.contract.plugins import load_plugin, plugins_of
from prgec.core.machine.extras import extra_hint
from prgec.errors import UsageError
from prgec.runtime.trackers.sink import Sink

# Name, also of the extra -> module it needs, and the class that reports to it.
_TRACKERS = {
    "tensorboard": ("tensorboard", "prgec.runtime.trackers.tensorboard:TensorBoardSink"),
    "wandb": ("wandb", "prgec.runtime.trackers.wandb:WandbSink"),
    "mlflow": ("mlflow", "prgec.runtime.trackers.mlflow:MlflowSink"),
    "trackio": ("trackio", "prgec.runtime.trackers.wandb:TrackioSink"),
}
# Packages add trackers by entry points of this group: classes that follow `Sink`.
ENTRY_POINTS = "prgec.trackers"
_PLUGINS = plugins_of(ENTRY_POINTS, _TRACKERS)
TRACKERS = (*_TRACKERS, *_PLUGINS)


def check_trackers(names: Iterable[str]) -> None:
    """Refuse trackers that are not installed, before anything begins.

    Raises:
        UsageError: Naming the first.
    """
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"there is no tracker {name!r}", hint=f"known: {', '.join(TRACKERS)}")
        if name in _TRACKERS and importlib.util.find_spec(_TRACKERS[name][0]) is None:
            raise UsageError(f"--log-to {name} needs {name}", hint=extra_hint(name))


def make_sinks(names: Iterable[str]) -> dict[str, Sink]:
    """Return trackers by name."""
    sinks: dict[str, Sink] = {}
    for name in names:
        sinks[name] = _class_of(name)()
    return sinks


def _class_of(name: str) -> Callable[[], Sink]:
    if name in _PLUGINS:
        found: Callable[[], Sink] = load_plugin(_PLUGINS[name])
        return found
    module, attribute = _TRACKERS[name][1].split(":")
    found = getattr(importlib.import_module(module), attribute)
    return found

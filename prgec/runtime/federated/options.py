"""The options of a server of many devices, and of a device; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from prgec.core.config.option import argument, option, table_of
from prgec.core.data.records import NO_FILE
from prgec.core.data.tasks import AUTO_TASK, TASK_HELP
from prgec.errors import UsageError
from prgec.runtime.federated.local import ROUND_MERGES
from prgec.runtime.federated.merge import MERGES
from prgec.runtime.federated.server_adam import SERVER_OPTIMIZERS
from prgec.runtime.training.estimators import DEFAULT_ESTIMATOR, ESTIMATORS
from prgec.runtime.training.privacy import (
    CLIP_HELP,
    DEFAULT_DELTA,
    DELTA_HELP,
    EPSILON_HELP,
    PrivacyTerms,
    privacy_terms,
)
from prgec.runtime.training.schedules import DEFAULT_SCHEDULE, SCHEDULES


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The options of a run of many devices; each field has its help.

    Those without help:

    Attributes:
        program: The compiled .pte.
    """

    program: Path = field(metadata=argument())

    rounds: int = option("rounds", 20, "Rounds of the run.")
    devices: int = option("rounds", 10, "Most devices of a round.")
    min_devices: int = option("rounds", 2, "Fewest devices that make a round.")
    local_steps: int = option("rounds", 50, "Steps that each device takes in a round.")
    timeout: float = option("rounds", 600.0, "Seconds in which a device has to answer.")
    merge: str = option(
        "rounds",
        "mean",
        "How the contributions of devices become one: clipped shortens those that are too long (prge); median and "
        "trimmed leave out the extreme ones (exact).",
        choices=tuple(dict.fromkeys((*ROUND_MERGES, *MERGES))),
    )
    server_optimizer: str = option(
        "rounds",
        "none",
        "How the server steps along what devices trained (exact): adam is FedAdam, none takes it as it is.",
        choices=SERVER_OPTIMIZERS,
    )
    server_lr: float = option("rounds", 1e-3, "Learning rate of the server's optimiser.")
    proximal: float = option(
        "rounds", 0.0, "Hold devices near the common state (exact): FedProx's mu, 0 for none.", metavar="MU"
    )

    lr: float | None = option("training", None, "Learning rate.", unset="what the program says")
    schedule: str = option(
        "training",
        DEFAULT_SCHEDULE,
        "How the learning rate changes over the run.",
        "--lr-schedule",
        choices=tuple(SCHEDULES),
    )
    eps: float = option("training", 1e-2, "Perturbation scale.")
    seed: int = option("training", 0, "Key of the noise, and of the choice of devices.")
    estimator: str = option("training", DEFAULT_ESTIMATOR, "How losses become coefficients.", choices=tuple(ESTIMATORS))
    adapter: Path | None = option("training", None, "Start from this adapter.", "--init-adapter", "--adapter")

    eval_data: Path | None = option("data", None, "Rows by which the server measures the adapter.", no_path=NO_FILE)
    eval_every: int = option("data", 1, "Rounds between two evaluations.", metavar="N")
    task: str = option("data", AUTO_TASK, TASK_HELP, is_place=True)

    out: Path = option("output", Path("federated"), "Folder of the run: journal, adapter and rounds.")

    def check(self) -> None:
        """Refuse impossible values.

        Raises:
            UsageError: Naming the first one.
        """
        for name in ("rounds", "devices", "min_devices", "local_steps", "eval_every"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {getattr(self, name)}; expected 1 or more")
        if self.min_devices > self.devices:
            raise UsageError(f"--min-devices is {self.min_devices}, and a round has at most {self.devices} devices")
        for name in ("timeout", "eps", "lr", "server_lr"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"--{name.replace('_', '-')} is {value}; expected a number above 0")
        if not 0 <= self.proximal < float("inf"):
            raise UsageError(f"--proximal is {self.proximal}; expected a number, 0 or more")


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """The options of a device; each field has its help.

    Those without help:

    Attributes:
        program: The compiled .pte.
    """

    program: Path = field(metadata=argument())

    data: Path | None = option("data", None, "Rows of this device; they stay on it.", no_path=NO_FILE)
    task: str = option("data", AUTO_TASK, TASK_HELP, is_place=True)
    name: str = option("data", "", "Name of the device.", unset="the name of the machine")

    dp_epsilon: float = option("privacy", 0.0, EPSILON_HELP, metavar="X")
    dp_delta: float = option("privacy", DEFAULT_DELTA, DELTA_HELP, metavar="X")
    dp_clip: float = option("privacy", 0.0, CLIP_HELP, metavar="X")

    out: Path = option("output", Path("device"), "Folder of the device: its copy of the adapter.")

    @property
    def terms(self) -> PrivacyTerms | None:
        """The budget of privacy; None for a device that hides nothing.

        Raises:
            UsageError: If a value is impossible.
        """
        return privacy_terms(self.dp_epsilon, self.dp_delta, self.dp_clip)


FLEET_TABLE = table_of(FleetOptions)
NODE_TABLE = table_of(NodeOptions)

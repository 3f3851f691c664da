"""A device in a run of rounds: it answers one task after the other, and keeps the common state in a folder.

A transport may start a process for each task, and any of them may be killed: what a device keeps is written before it
takes steps of its own, and these never reach the disk.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prgec.core.contract.engine import TrainableProgram
from prgec.core.data.batches import step_indices
from prgec.core.data.row import Row
from prgec.core.formats.adapter import identity, masters, masters_sha256, save_adapter
from prgec.core.formats.run_folder import ADAPTER_NAME
from prgec.core.machine.files import write_atomic
from prgec.errors import DataError, PrgecError, UsageError
from prgec.runtime.federated.average import train_state
from prgec.runtime.federated.device import FederatedDevice
from prgec.runtime.federated.device_budget import DeviceBudget
from prgec.runtime.federated.ledger import Update
from prgec.runtime.federated.local import local_steps, train_locally
from prgec.runtime.federated.messages import Fields, NodeAnswer, NodeTask, SharedSteps, pack_state, unpack_state
from prgec.runtime.training.privacy import Privacy, PrivacyTerms

# The run that a folder belongs to, and how far it is.
NODE_NAME = "device.json"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A device with rows of its own.

    Attributes:
        name: Name of the device, for people.
        folder: Folder of its state.
        program: Its program, freshly opened or used by this node alone.
        rows: Its rows.
        terms: Its budget of privacy; None for a device that hides nothing.
    """

    name: str
    folder: Path
    program: TrainableProgram
    rows: Sequence[Row]
    terms: PrivacyTerms | None = None

    def answer(self, fields: Fields) -> dict[str, object]:
        """Do a task, and return the answer; what goes wrong is an answer, too."""
        number = 0
        try:
            task = NodeTask.of_fields(fields)
            number = task.number
            self._join(task)
            answer = self._learn_state(task) if task.steps is None else self._learn_steps(task, task.steps)
            self._note(task)
        except PrgecError as error:
            answer = NodeAnswer(device=self.name, number=number, error=str(error))
        return answer.fields()

    @property
    def order(self) -> int:
        """Seed of the order of its rows."""
        return zlib.crc32(self.name.encode())

    def _join(self, task: NodeTask) -> None:
        """Refuse the task of another run or program, and make the folder that of this run.

        Raises:
            UsageError: If the program is another one, or the folder is of another run.
        """
        if task.program != identity(self.program.manifest):
            raise UsageError(
                "the server trains another program: other weights, trained layers, rank or A",
                where=self.name,
                hint="compile the same checkpoint with the same options",
            )
        found = read_node(self.folder)
        if found and found.get("run") != task.run:
            raise UsageError("the folder belongs to another run", where=self.folder, hint="name another --out")
        if not found:
            if (self.folder / ADAPTER_NAME).exists():
                raise UsageError("the folder has an adapter of its own", where=self.folder, hint="name another --out")
            self._note(replace(task, number=0, is_last=False))

    def _note(self, task: NodeTask) -> None:
        document = {"run": task.run, "name": self.name, "round": task.number, "is_over": task.is_last}
        write_atomic(self.folder / NODE_NAME, (json.dumps(document) + "\n").encode())

    def _learn_steps(self, task: NodeTask, steps: SharedSteps) -> NodeAnswer:
        program, path = self.program, self.folder / ADAPTER_NAME
        device = FederatedDevice(
            self.name, program, self.rows, seed=steps.seed, eps=steps.eps, order=self.order, step=0
        )
        if path.exists():
            device.restore(path)
        if task.state:
            program.write_state(unpack_state(task.state, masters(program.read_state(), program.manifest)))
            device.step = steps.after
        behind = NodeAnswer(device=self.name, number=task.number, step=device.step, sha256=device.state_sha256())
        if not steps.after <= device.step <= steps.last:
            # The server sends what is missing, or refuses a device that is ahead of it.
            return behind
        if steps.g.shape[1] != program.manifest.q:
            raise UsageError(f"the server's program has q = {steps.g.shape[1]}, this one q = {program.manifest.q}")
        updates = [
            Update(step=step, lr=float(lr), g=g_q)
            for step, (lr, g_q) in enumerate(zip(steps.lr, steps.g, strict=True), start=steps.after + 1)
        ]
        device.catch_up(updates)
        device.save(path)
        answer = replace(behind, step=device.step, sha256=device.state_sha256())
        if not task.rates:
            return answer
        found = train_locally(
            device,
            number=task.number,
            first=steps.first,
            rates=task.rates,
            estimator=steps.estimator,
            privacy=self._privacy(task),
        )
        return replace(answer, first=steps.first, num_rows=found.num_rows, body=found.g.astype("<f4").tobytes())

    def _privacy(self, task: NodeTask) -> Privacy | None:
        """Pay for the steps of a round, and return what hides their rows; None for a device that hides nothing.

        Raises:
            UsageError: If the budget is used up.
        """
        if self.terms is None:
            return None
        size, num_rows = self.program.manifest.batch_size, len(self.rows)
        steps = task.rounds * len(task.rates)
        budget = DeviceBudget(self.folder, self.terms, self.rows, steps=steps, batch_size=size)
        return budget.charge(
            [step_indices(num_rows, size, self.order, n) for n in local_steps(task.number, task.rates)]
        )

    def _learn_state(self, task: NodeTask) -> NodeAnswer:
        program = self.program
        if not program.manifest.has_gradients:
            raise UsageError("the server trains by gradients, and this program measures losses", where=self.name)
        program.write_state(unpack_state(task.state, masters(program.read_state(), program.manifest)))
        program.forget_steps()
        save_adapter(self.folder / ADAPTER_NAME, program)
        answer = NodeAnswer(device=self.name, number=task.number, sha256=masters_sha256(program))
        if not task.rates:
            return answer
        found = train_state(
            self.name,
            program,
            self.rows,
            rates=task.rates,
            number=task.number,
            order=self.order,
            proximal=task.proximal,
        )
        return replace(answer, num_rows=found.num_rows, body=pack_state(program))


def read_node(folder: Path) -> dict[str, object]:
    """Return what a device's folder says of its run; empty where it has not begun.

    Raises:
        DataError: If the file is damaged.
    """
    path = folder / NODE_NAME
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DataError("the state of the device is damaged", where=path, hint="name another --out") from error
    if not isinstance(document, dict):
        raise DataError("the state of the device is damaged", where=path, hint="name another --out")
    return document

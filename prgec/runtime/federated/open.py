"""Open what a server and a device need, from their options."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prgec.core.contract.engine import Engine
from prgec.core.data.dataset import load_dataset
from prgec.core.data.encode import encode_items
from prgec.core.data.eval_set import EvalSet, encode_eval_set
from prgec.core.data.row import Row
from prgec.core.data.weight import check_weighs
from prgec.core.formats.adapter import identity, load_adapter, masters_sha256
from prgec.core.formats.fleet_folder import FLEET_NAME, ROUNDS_NAME, mend_rounds
from prgec.core.formats.journal_records import Header
from prgec.core.formats.run_folder import ADAPTER_NAME, JOURNAL_NAME
from prgec.core.machine.files import write_atomic
from prgec.core.machine.folder_lock import FolderLock
from prgec.errors import UsageError
from prgec.runtime.engines.choose import open_program
from prgec.runtime.federated.device import check_shares_steps
from prgec.runtime.federated.fleet import Exchange, Pace, RoundRecord, run_rounds
from prgec.runtime.federated.local import ROUND_MERGES, RoundPlan
from prgec.runtime.federated.merge import MERGES
from prgec.runtime.federated.merger import Merger
from prgec.runtime.federated.node import Node, read_node
from prgec.runtime.federated.options import FleetOptions, NodeOptions
from prgec.runtime.federated.server_adam import ServerAdam
from prgec.runtime.federated.simulate import Simulation, split_rows
from prgec.runtime.federated.state_merger import StateMerger
from prgec.runtime.federated.step_merger import StepMerger
from prgec.runtime.training.evaluate import Evaluation, evaluate
from prgec.runtime.training.privacy import PrivacyTerms
from prgec.runtime.training.schedules import Rates


class Fleet:
    """A run of many devices, opened; use as a context manager.

    The same options in the same folder go on with a run.

    Args:
        options: The options.

    Raises:
        PrgecError: If an option, the program, the data or the folder cannot be used; nothing is written then.
    """

    def __init__(self, options: FleetOptions) -> None:
        options.check()
        self.options = options
        dataset = load_dataset(options.eval_data, options.task) if options.eval_data else None
        self.program = open_program(options.program)
        if options.adapter is not None:
            load_adapter(options.adapter, self.program)
        self._eval_set: EvalSet | None = encode_eval_set(dataset, self.program) if dataset else None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(FolderLock(self.options.out))
            self.merger: Merger = stack.enter_context(self._merger())
            # The folder is let go where the run cannot be opened.
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, exchange: Exchange, on_line: Callable[[dict[str, Any]], None] = lambda line: None) -> None:
        """Take the rounds that are left.

        Args:
            exchange: The transport.
            on_line: Observes the line of each round.

        Raises:
            DataError: If nothing that devices send can be used.
        """
        options = self.options
        pace = Pace(min_devices=options.min_devices, timeout=options.timeout, seed=options.seed)

        def write(record: RoundRecord, *, is_measured: bool) -> None:
            line = record.to_json() | (self._measured() if is_measured else {})
            with (options.out / ROUNDS_NAME).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            on_line(line)

        def on_round(record: RoundRecord) -> None:
            is_due = record.number % options.eval_every == 0 or record.number == options.rounds
            write(record, is_measured=is_due)

        done = self.merger.number - 1
        for number in range(mend_rounds(options.out) + 1, done + 1):
            # Nobody has measured yet, or the server was killed after it had merged the round; the state is the last.
            write(RoundRecord(number=number), is_measured=number == done)
        run_rounds(self.merger, exchange, pace, on_round)

    def evaluate(self) -> Evaluation | None:
        """Return the score of the common state; None without rows to measure it by."""
        return evaluate(self.program, self._eval_set) if self._eval_set else None

    def _measured(self) -> dict[str, Any]:
        found = self.evaluate()
        return {"loss": found.loss, "accuracy": found.accuracy} if found else {}

    def _merger(self) -> Merger:
        """Return the run of the folder, whose files are made where there are none."""
        options, m = self.options, self.program.manifest
        if not m.has_gradients:
            check_shares_steps(self.program)
        merges = tuple(MERGES) if m.has_gradients else ROUND_MERGES
        if options.merge not in merges:
            method = "exact" if m.has_gradients else "prge"
            raise UsageError(f"--merge {options.merge} is not for {method}", hint=f"take {' or '.join(merges)}")
        for flag, is_used in (
            ("--server-optimizer", options.server_optimizer != "none"),
            ("--proximal", options.proximal > 0),
        ):
            if is_used and not m.has_gradients:
                raise UsageError(
                    f"{flag} is not for prge: devices apply each other's steps", hint="compile with --method exact"
                )
        plan = RoundPlan(rounds=options.rounds, places=options.devices, local_steps=options.local_steps)
        lr = m.lr if options.lr is None else options.lr
        course = Rates(options.rounds * options.local_steps, lr, options.schedule)
        header = Header(
            q=m.q,
            batch_size=m.batch_size,
            seed=options.seed,
            steps=plan.steps,
            lr=lr,
            eps=options.eps,
            schedule=options.schedule,
            estimator=options.estimator,
            num_examples=0,
            rows_crc=0,
            program_sha256=identity(m),
            start_sha256=masters_sha256(self.program),
        )
        optimizer: ServerAdam | None = None
        kept: dict[str, object] = {}
        if options.server_optimizer != "none":
            optimizer = ServerAdam(folder=options.out, lr=options.server_lr)
            kept = {"server_optimizer": options.server_optimizer, "server_lr": options.server_lr}
        if options.proximal:
            kept["proximal"] = options.proximal
        document = {"journal": header.pack().hex(), "merge": options.merge, **kept, **vars(plan)}
        run = _claim(options.out, document)
        if m.has_gradients:
            return StateMerger(
                *(options.out, run, self.program),
                plan=plan,
                course=course,
                merge=options.merge,
                proximal=options.proximal,
                optimizer=optimizer,
            )
        return StepMerger(options.out, run, self.program, header=header, plan=plan, course=course, merge=options.merge)


def _claim(folder: Path, document: dict[str, Any]) -> str:
    """Make a folder that of a run, and return the run's identity.

    Raises:
        UsageError: If the folder has something else.
    """
    text = json.dumps(document, indent=2) + "\n"
    path = folder / FLEET_NAME
    if path.exists():
        if path.read_bytes() != text.encode():
            raise UsageError(
                "the folder has a run with other options or another program", where=folder, hint="name another --out"
            )
    else:
        # A transport keeps its own files in the folder before the run begins; those of other runs have our names.
        taken = [name for name in (ADAPTER_NAME, JOURNAL_NAME, ROUNDS_NAME) if (folder / name).exists()]
        if taken:
            raise UsageError(f"the folder has {taken[0]} of another run", where=folder, hint="name another --out")
        write_atomic(path, text.encode())
    return hashlib.sha256(text.encode()).hexdigest()


def check_node(options: NodeOptions) -> None:
    """Check what a device needs before it joins.

    Raises:
        PrgecError: If the program or the data cannot be used, or the folder has an adapter of something else.
    """
    if (options.out / ADAPTER_NAME).exists() and not read_node(options.out):
        raise UsageError("the folder has an adapter of its own", where=options.out, hint="name another --out")
    open_node(options)


def simulation(options: FleetOptions, data: Path, skew: float | None, terms: PrivacyTerms | None = None) -> Simulation:
    """Return all devices of a run, as this process plays them.

    Args:
        options: Options of the server.
        data: Rows that are dealt out to the devices.
        skew: How unequally (`split_rows`).
        terms: Budget of privacy of each device; None for devices that hide nothing.

    Raises:
        PrgecError: If the program or the data cannot be used.
    """
    program, rows = _open_rows(options.program, data, options.task, terms)
    parts = split_rows(rows, options.devices, skew=skew, seed=options.seed)
    return Simulation(options.out / "devices", program, parts, terms=terms)


def open_node(options: NodeOptions) -> Node:
    """Open a device's program and rows.

    Raises:
        PrgecError: If the program or the data cannot be used.
    """
    if options.data is None:
        raise UsageError("a device needs rows to learn from", hint="name them with --data")
    terms = options.terms
    program, rows = _open_rows(options.program, options.data, options.task, terms)
    options.out.mkdir(parents=True, exist_ok=True)
    name = options.name or socket.gethostname()
    return Node(name=name, folder=options.out, program=program, rows=rows, terms=terms)


def _open_rows(path: Path, data: Path, task: str, terms: PrivacyTerms | None) -> tuple[Engine, list[Row]]:
    dataset = load_dataset(data, task)
    program = open_program(path)
    if terms is not None:
        terms.check(program.manifest, path)
    rows = encode_items(dataset.choosing_from(program.manifest.answers).examples, program.tokenizer, program.manifest)
    check_weighs(rows, program.manifest, data)
    return program, list(rows)

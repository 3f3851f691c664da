"""Runs passes in order, with all instrumentation in one callback."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from prgec.errors import UsageError
from prgec.passes.infra import Pass, Snapshot
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from prgec.passes.record import PassRecord
from prgec.passes.spec import print_pass

logger = logging.getLogger(__name__)


Callback = Callable[[int, Pass, GraphProgram, PassRecord], None]


def run_pipeline(program: GraphProgram, passes: Sequence[Pass], callback: Callback | None = None) -> list[PassRecord]:
    """Run `passes` over `program` in place.

    Args:
        program: Graph to rewrite.
        passes: Passes in order.
        callback: Called after every pass with its number, the pass, the program and the record. It may give tensors
            other values, but edits no nodes.

    Raises:
        UsageError: If the order breaks a constraint; all violations are listed at once.
        PassError: If a pass fails.
    """
    check_order(passes)
    records: list[PassRecord] = []
    program.finish()
    before = Snapshot.of(program)
    for number, each in enumerate(passes, start=1):
        started = time.perf_counter()
        result, after = each.run_checked(program, before)
        spec, seconds = print_pass(each), time.perf_counter() - started
        record = PassRecord(
            text=spec,
            changed=result.changed,
            hits=result.hits,
            op_diff=_op_diff(before, after),
            refusals=result.refusals,
            seconds=seconds,
        )
        before = after
        logger.info("pass %d/%d %s", number, len(passes), record.summary())
        records.append(record)
        if callback is not None:
            callback(number, each, program, record)
    return records


def check_order(passes: Sequence[Pass]) -> None:
    """Check every `after` constraint.

    Raises:
        UsageError: With all violations in one message.
    """
    names = [each.name for each in passes]
    last = {name: index for index, name in enumerate(names)}
    broken = [
        f"{each.name} must come after {earlier}"
        for index, each in enumerate(passes)
        for earlier in sorted(each.after)
        if last.get(earlier, -1) > index
    ]
    if broken:
        raise UsageError("the passes are in the wrong order: " + "; ".join(dict.fromkeys(broken)))


def dump_to(folder: Path) -> Callback:
    """Return a callback that writes the graph after each pass to `folder/NN-pass-name.txt`."""
    folder.mkdir(parents=True, exist_ok=True)

    def callback(number: int, each: Pass, program: GraphProgram, record: PassRecord) -> None:
        header = f"// {print_pass(each)}\n// {record.summary()}\n"
        refused = "".join(f"// refused {refusal}\n" for refusal in record.refusals)
        (folder / f"{number:02d}-{each.name}.txt").write_text(header + refused + print_program(program))

    return callback


def _op_diff(before: Snapshot, after: Snapshot) -> dict[str, tuple[int, int]]:
    names = sorted(before.op_counts.keys() | after.op_counts.keys())
    counts = {name: (before.op_counts.get(name, 0), after.op_counts.get(name, 0)) for name in names}
    return {name: pair for name, pair in counts.items() if pair[0] != pair[1]}

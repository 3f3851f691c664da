"""The device's part: run the frozen model once over labelled rows, and write what a server learns from.

Letters: n rows of a shard, B rows a call, L blocks, K label positions, D width, C candidates, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prgec.core.contract.arrays import FloatArray, IntArray
from prgec.core.contract.listener import CallListener, ignore
from prgec.core.contract.manifest import Manifest
from prgec.core.data.batches import evaluation_batches
from prgec.core.data.encode import Row
from prgec.core.data.first_tokens import FirstTokens
from prgec.core.formats.shards import (
    CANDIDATES,
    DTYPES,
    ID_BYTES,
    MAX_SHARD_BYTES,
    SECRET,
    Y_PRE,
    Shard,
    ShardShape,
    narrow,
    pack_shard,
    read_shard,
)
from prgec.core.machine.files import write_atomic
from prgec.errors import DataError, NumericsError, UsageError
from prgec.runtime.engines.executorch.emitting_program import EmittingProgram
from prgec.serve.side.cache import SHARD_GLOB
from prgec.serve.side.row_ids import row_ids
from prgec.serve.side.targets import difference, randomised, secret_scores

# The file that stays on the device: names of the answers, and how differences were made.
LOCAL_NAME = "local.json"
_NAME = "shard-{:05d}.safetensors"

FileListener = Callable[[Path], None]


@dataclass(frozen=True)
class EmitOptions:
    """How rows are emitted.

    Attributes:
        y_pre: Scores that the network adds to: the model's of the `candidates`, or those of a `secret` head.
        label_dp: Epsilon of label differential privacy; None to send differences from the true labels.
        dtype: Type of sent activations: `f16`, or `i8` with a scale for each.
        shard_rows: Rows of a shard.
    """

    y_pre: str = CANDIDATES
    label_dp: float | None = None
    dtype: str = DTYPES[0]
    shard_rows: int = 256

    def check(self) -> None:
        """Refuse impossible values.

        Raises:
            UsageError: Naming the option.
        """
        if self.y_pre not in Y_PRE:
            raise UsageError(f"--y-pre is {self.y_pre!r}; expected {' or '.join(Y_PRE)}")
        if self.dtype not in DTYPES:
            raise UsageError(f"--dtype is {self.dtype!r}; expected {' or '.join(DTYPES)}")
        if self.shard_rows < 1:
            raise UsageError(f"--shard-rows is {self.shard_rows}; expected at least 1")


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """The result of emitting a data set.

    Attributes:
        num_rows: Rows in the folder.
        num_shards: Files they are in.
        num_new: Files that were not there before.
        num_bytes: Size of all files.
        seconds: Wall time.
        interrupted: Whether it was stopped before the last file.
    """

    num_rows: int
    num_shards: int
    num_new: int
    num_bytes: int
    seconds: float
    interrupted: bool = False


def program_hash(manifest: Manifest) -> str:
    """Return a hash of what activations depend on besides the rows: weights, and what was made of them."""
    parts = [manifest.base_sha256, manifest.backend, manifest.soc, manifest.pipeline]
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()


def shape_of(manifest: Manifest, num_classes: int, y_pre: str) -> ShardShape:
    """Return what all shards of a program and a choice between C answers have in common."""
    return ShardShape(
        program=program_hash(manifest),
        num_blocks=manifest.num_blocks,
        num_labels=manifest.num_labels,
        width=manifest.hidden_size,
        num_classes=num_classes,
        y_pre=y_pre,
    )


def emit(
    program: EmittingProgram,
    data: FirstTokens,
    folder: Path,
    key: bytes,
    options: EmitOptions,
    on_rows: CallListener = ignore,
    should_stop: Callable[[], bool] = lambda: False,
    on_file: FileListener = lambda path: None,
) -> Emitted:
    """Write the shards of a data set; those that are there already are left as they are.

    Args:
        program: The backbone.
        data: Labelled rows.
        folder: Where to, created if it is missing.
        key: The device's.
        options: How.
        on_rows: Called with (rows done, all rows) after every shard.
        should_stop: Checked before every shard.
        on_file: Called with every shard, old or new, when it is whole.

    Raises:
        DataError: If a label is missing, or the folder holds shards of something else.
        NumericsError: If an activation is not finite.
        UsageError: If an option has an impossible value.
    """
    started = time.monotonic()
    options.check()
    rows = _Rows.of(program, data, key, options)
    total, size = len(rows.ids), _rows_that_fit(options.shard_rows, rows.shape)
    plan = [(number, slice(at, at + size)) for number, at in enumerate(range(0, total, size))]
    folder.mkdir(parents=True, exist_ok=True)
    local: dict[str, object] = {"choices": list(data.choices), "y_pre": options.y_pre, "label_dp": options.label_dp}
    _check_folder(folder, len(plan), local)
    num_new = 0
    for number, part in plan:
        if should_stop():
            return _emitted(folder, total, num_new, started, interrupted=True)
        path = folder / _NAME.format(number)
        if not (path.exists() and _is_shard_of(path, rows.shape, rows.ids[part], options)):
            write_atomic(path, pack_shard(rows.shard(part)))
            num_new += 1
        on_file(path)
        on_rows(min(part.stop, total), total)
    return _emitted(folder, total, num_new, started)


def run_rows(program: EmittingProgram, rows: Sequence[Row], first_tokens: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the activations of rows, f32[n, L, K, D], and the model's scores of the candidates, f32[n, C].

    Raises:
        NumericsError: If one is not finite.
    """
    m = program.manifest
    acts = np.empty((len(rows), m.num_blocks, m.num_labels, m.hidden_size), dtype=np.float32)
    scores = np.empty((len(rows), len(first_tokens)), dtype=np.float32)
    for batch in evaluation_batches(rows, m):
        acts_BLKD, logits_BKV = program.emit(batch.tokens_NT, batch.label_pos_NK)
        num_rows = len(batch.indices)
        acts[batch.indices] = acts_BLKD[:num_rows]
        scores[batch.indices] = logits_BKV[:num_rows, 0][:, first_tokens]
    if not (np.isfinite(acts).all() and np.isfinite(scores).all()):
        raise NumericsError("the model computes values that are not finite", hint="look at the checkpoint")
    return acts, scores


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Everything a shard is made of; attributes as the arguments of `emit`, and what follows from them."""

    program: EmittingProgram
    data: FirstTokens
    key: bytes
    options: EmitOptions
    shape: ShardShape
    ids: Sequence[bytes]
    answers: Sequence[float]

    @classmethod
    def of(cls, program: EmittingProgram, data: FirstTokens, key: bytes, options: EmitOptions) -> _Rows:
        if -1 in data.answers:
            raise DataError("a row has no label; a side network learns from labelled rows")
        shape = shape_of(program.manifest, len(data.choices), options.y_pre)
        ids = row_ids(data.rows, key)
        answers: Sequence[float] = data.wanted
        if options.label_dp is not None:
            answers = randomised(data.answers, ids, shape.num_classes, options.label_dp, key)
        return cls(program=program, data=data, key=key, options=options, shape=shape, ids=ids, answers=answers)

    def shard(self, part: slice) -> Shard:
        acts, scores = run_rows(self.program, self.data.rows[part], self.data.first_tokens)
        if self.options.y_pre == SECRET:
            scores = secret_scores(acts[:, -1, 0], self.shape.num_classes, self.key)
        dy = difference(scores, self.answers[part])
        sent, scales = narrow(acts, self.options.dtype, self.program.path)
        ids = np.frombuffer(b"".join(self.ids[part]), dtype=np.uint8).reshape(-1, ID_BYTES)
        return Shard(shape=self.shape, ids=ids, acts=sent, scales=scales, dy=dy[:, None, :])


def _rows_that_fit(wanted: int, shape: ShardShape) -> int:
    """Rows of a shard that stays well below what a server takes."""
    row_bytes = ID_BYTES + shape.num_labels * (4 * shape.num_classes + shape.num_blocks * (2 * shape.width + 4))
    return max(1, min(wanted, MAX_SHARD_BYTES // 2 // row_bytes))


def _is_shard_of(path: Path, shape: ShardShape, ids: Sequence[bytes], options: EmitOptions) -> bool:
    """Whether a file is the shard of these rows already; a damaged one is made again.

    Raises:
        DataError: If it is a shard of another program or of other rows.
    """
    try:
        shard = read_shard(path)
    except DataError:
        return False
    is_same = shard.shape == shape and shard.ids.tobytes() == b"".join(ids)
    if not is_same or (shard.scales is None) != (options.dtype == DTYPES[0]):
        raise DataError("the folder holds a shard of another program or of other rows", where=path, hint=_HINT)
    return True


_HINT = "name another folder with -o"


def _check_folder(folder: Path, num_shards: int, local: dict[str, object]) -> None:
    """Keep what stays on the device beside the shards, and refuse a folder that was made otherwise.

    Raises:
        DataError: Naming the folder.
    """
    path = folder / LOCAL_NAME
    if path.exists():
        if json.loads(path.read_text(encoding="utf-8")) != local:
            raise DataError("the folder was emitted with other answers or options", where=folder, hint=_HINT)
    else:
        write_atomic(path, (json.dumps(local, indent=2) + "\n").encode())
    names = {_NAME.format(number) for number in range(num_shards)}
    foreign = sorted(each.name for each in folder.glob(SHARD_GLOB) if each.name not in names)
    if foreign:
        raise DataError(f"the folder holds {foreign[0]}, which does not belong to these rows", where=folder, hint=_HINT)


def _emitted(folder: Path, num_rows: int, num_new: int, started: float, *, interrupted: bool = False) -> Emitted:
    files = list(folder.glob(SHARD_GLOB))
    num_bytes = sum(each.stat().st_size for each in files)
    return Emitted(
        num_rows=num_rows,
        num_shards=len(files),
        num_new=num_new,
        num_bytes=num_bytes,
        seconds=time.monotonic() - started,
        interrupted=interrupted,
    )

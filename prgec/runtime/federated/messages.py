"""The messages between a server and its devices, as fields of plain values that any transport carries.

Both ends read what a stranger may have written: a field that is missing, of another type or too large is refused.

Letters: M local steps, q queries, n steps or numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from prgec.core.contract.arrays import Float64Array, FloatArray, State
from prgec.core.contract.engine import TrainableProgram
from prgec.core.formats.adapter import masters
from prgec.errors import DataError

# Values are of type int, float, str or bytes, or lists of floats.
Fields: TypeAlias = Mapping[str, Any]
T = TypeVar("T")

_VERSION = 1
_MAX_LOCAL_STEPS = 1 << 20
_MAX_QUERIES = 1 << 16
_SHA256_LETTERS = 64
# Letters of a device's name or error that a log has room for.
_SHOWN = 200
_BYTES_OF_A_NUMBER = 8


@dataclass(frozen=True, kw_only=True)
class SharedSteps:
    """The steps of `prge` that a device has to apply, and how it takes its own ones.

    Attributes:
        seed: Key of the noise, the same on all devices.
        eps: Perturbation scale.
        estimator: Row of the table of estimators.
        first: Steps before the first one of the device's place in the round.
        after: Steps before the first one of `lr` and `g`.
        lr: Learning rate of each step, f64[n].
        g: Coefficients of each step, f32[n, q].
    """

    seed: int
    eps: float
    estimator: str
    first: int
    after: int
    lr: Float64Array
    g: FloatArray

    @property
    def last(self) -> int:
        """Steps that a device has after it applied these."""
        return self.after + len(self.lr)


@dataclass(frozen=True, kw_only=True)
class NodeTask:
    """A round, as the server asks it of a device.

    Attributes:
        run: Identity of the run of all devices.
        program: Identity of the program.
        number: The round, from 1.
        rounds: Rounds of the run.
        rates: Learning rate of each local step, M of them; empty where the device takes the common state alone.
        proximal: FedProx's mu, 0 for none; for programs that compute gradients.
        is_last: Whether the run is over with this task.
        state: The common state (`pack_state`); empty where the device gets it by applying steps.
        steps: The steps of `prge`; None for programs that compute gradients.
    """

    run: str
    program: str
    number: int
    rounds: int
    rates: tuple[float, ...]
    proximal: float = 0.0
    is_last: bool = False
    state: bytes = b""
    steps: SharedSteps | None = None

    def fields(self) -> dict[str, Any]:
        """Return the task as fields."""
        fields: dict[str, Any] = {
            "version": _VERSION,
            "run": self.run,
            "program": self.program,
            "number": self.number,
            "rounds": self.rounds,
            "rates": list(self.rates),
            "proximal": self.proximal,
            "is_last": int(self.is_last),
            "state": self.state,
        }
        if (steps := self.steps) is None:
            return fields
        return fields | {
            "seed": steps.seed,
            "eps": steps.eps,
            "estimator": steps.estimator,
            "first": steps.first,
            "after": steps.after,
            "q": steps.g.shape[1],
            "lr": steps.lr.astype("<f8").tobytes(),
            "g": steps.g.astype("<f4").tobytes(),
        }

    @classmethod
    def of_fields(cls, fields: Fields) -> NodeTask:
        """Read a task.

        Raises:
            DataError: If it is damaged, or of another version.
        """
        if _take(fields, "version", int) != _VERSION:
            raise DataError(
                f"the server speaks version {fields['version']!r} of the messages, and this is version {_VERSION}",
                hint="install the same prgec on both ends",
            )
        return cls(
            run=_text(fields, "run"),
            program=_text(fields, "program"),
            number=_count(fields, "number"),
            rounds=_count(fields, "rounds"),
            rates=tuple(_numbers(fields, "rates")),
            proximal=_number(fields, "proximal"),
            is_last=bool(_take(fields, "is_last", int)),
            state=_take(fields, "state", bytes),
            steps=_shared_steps(fields) if "g" in fields else None,
        )


@dataclass(frozen=True, kw_only=True)
class NodeAnswer:
    """A device's answer to a task.

    Attributes:
        device: Its name, for people: who it is, the transport knows.
        number: The round.
        step: Steps that its state includes, 0 for programs that compute gradients.
        sha256: Hash of the common state, as the device has it.
        first: Steps before the first one of its own, as in the task.
        num_rows: Rows that its own steps saw; 0 where it took none.
        body: The coefficients of its steps, f32[M, q], or its state (`pack_state`).
        error: Reason why it could not, in one line; empty where it could.
    """

    device: str
    number: int
    step: int = 0
    sha256: str = ""
    first: int = 0
    num_rows: int = 0
    body: bytes = b""
    error: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the answer as fields."""
        return dict(vars(self))

    @classmethod
    def of_fields(cls, fields: Fields) -> NodeAnswer:
        """Read an answer.

        Raises:
            DataError: If it is damaged.
        """
        return cls(
            device=_text(fields, "device"),
            number=_count(fields, "number"),
            step=_count(fields, "step"),
            sha256=_text(fields, "sha256")[:_SHA256_LETTERS],
            first=_count(fields, "first"),
            num_rows=_count(fields, "num_rows"),
            body=_take(fields, "body", bytes),
            error=_text(fields, "error"),
        )

    def coefficients(self, local_steps: int, q: int) -> FloatArray:
        """Return the body as coefficients, f32[M, q].

        Raises:
            DataError: If it is of another size.
        """
        return _array(self.body, np.dtype("<f4"), (local_steps, q), "an answer").astype(np.float32)


def payload_bytes(fields: Fields) -> int:
    """Return what the values of a message take, without their names and what a transport adds."""
    sizes = (
        len(value) * (_BYTES_OF_A_NUMBER if isinstance(value, list) else 1)
        if isinstance(value, str | bytes | list)
        else _BYTES_OF_A_NUMBER
        for value in fields.values()
    )
    return sum(sizes)


def pack_state(program: TrainableProgram) -> bytes:
    """Return the masters of a program, in the order of its sites: f32."""
    state = masters(program.read_state(), program.manifest)
    return b"".join(np.ascontiguousarray(array, dtype="<f4").tobytes() for array in state.values())


def unpack_state(data: bytes, like: State) -> State:
    """Return packed masters by name.

    Args:
        data: Bytes of `pack_state`.
        like: Masters of the program, for their names and shapes.

    Raises:
        DataError: If the size is not that of the program's state, or a number is not finite.
    """
    count = sum(array.size for array in like.values())
    values = _array(data, np.dtype("<f4"), (count,), "a state")
    if not np.isfinite(values).all():
        raise DataError("a state has numbers that are not finite")
    state: State = {}
    start = 0
    for name, array in like.items():
        state[name] = values[start : start + array.size].reshape(array.shape).astype(np.float32)
        start += array.size
    return state


def _shared_steps(fields: Fields) -> SharedSteps:
    lr, q = _take(fields, "lr", bytes), _count(fields, "q")
    if not 1 <= q <= _MAX_QUERIES:
        raise DataError(f"a message has q = {q}")
    count = len(lr) // _BYTES_OF_A_NUMBER
    rates = _array(lr, np.dtype("<f8"), (count,), "a message")
    g = _array(_take(fields, "g", bytes), np.dtype("<f4"), (count, q), "a message")
    eps = _take(fields, "eps", float)
    if not (np.isfinite(rates).all() and np.isfinite(g).all() and math.isfinite(eps) and eps > 0):
        raise DataError("a message has numbers that are not finite")
    return SharedSteps(
        seed=_take(fields, "seed", int),
        eps=eps,
        estimator=_text(fields, "estimator"),
        first=_count(fields, "first"),
        after=_count(fields, "after"),
        lr=rates.astype(np.float64),
        g=g.astype(np.float32),
    )


def _array(data: bytes, kind: np.dtype[Any], shape: tuple[int, ...], what: str) -> np.ndarray[Any, Any]:
    expected = math.prod(shape) * kind.itemsize
    if len(data) != expected:
        raise DataError(f"{what} has {len(data)} bytes; expected {expected}")
    return np.frombuffer(data, dtype=kind).reshape(shape)


def _take(fields: Fields, name: str, kind: type[T]) -> T:
    value = fields.get(name)
    # A bool is an int to Python, and none is sent.
    if type(value) is not kind:
        raise DataError(f"a message has no {name} of type {kind.__name__}")
    return value


def _count(fields: Fields, name: str) -> int:
    value = _take(fields, name, int)
    if not 0 <= value < 1 << 62:
        raise DataError(f"a message has {name} = {value}")
    return value


def _text(fields: Fields, name: str) -> str:
    return _take(fields, name, str)[:_SHOWN]


def _number(fields: Fields, name: str) -> float:
    value = _take(fields, name, float)
    if not (math.isfinite(value) and value >= 0):
        raise DataError(f"a message has {name} = {value}")
    return value


def _numbers(fields: Fields, name: str) -> list[float]:
    values = _take(fields, name, list)
    if len(values) > _MAX_LOCAL_STEPS or not all(type(each) is float and math.isfinite(each) for each in values):
        raise DataError(f"a message has {name} that are not finite numbers, or too many of them")
    return values

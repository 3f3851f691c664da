"""A pass: a frozen dataclass with a name, a numerics tier and one `run`.

The contract is enforced here and not by authors of passes: requires -> run -> ensures -> verify, and a pass
that says it changed nothing must have changed nothing. Failures name the pass and chain the cause.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, TypeVar

from torch.fx import Node

from prgec.errors import PassError, PrgecError
from prgec.passes.printer import op_counts, print_program
from prgec.passes.program import GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.verify import verify


@dataclass(frozen=True)
class Tier:
    """How far a pass may move the numbers.

    Attributes:
        name: `EXACT` (same bits), `ROUNDING` (within `tol`, relative) or `CHANGES` (another function).
        tol: Largest relative difference of the losses; 0 for `EXACT`.
    """

    name: str
    tol: float = 0.0


class Role(Enum):
    """Which programs a pass is for."""

    SHARED = auto()
    """Every program, one that only reads included."""
    TRAINING = auto()
    """Every program that trains its own B."""
    MEASURED_LOSSES = auto()
    """Programs that train by losses they measure at perturbed weights."""
    GRADIENTS = auto()
    """Programs that train by gradients."""
    SIDE_TUNING = auto()
    """Programs that emit activations for a side network."""


M = TypeVar("M")

EXACT = Tier("EXACT")
CHANGES = Tier("CHANGES", float("inf"))


def rounding(tol: float) -> Tier:
    """Tier of a pass that reorders floating-point arithmetic."""
    return Tier("ROUNDING", tol)


@dataclass(frozen=True)
class Snapshot:
    """How a program looks between two passes.

    Attributes:
        text: The graph, as `print_program` writes it.
        op_counts: Number of calls of each op.
    """

    text: str
    op_counts: Mapping[str, int]

    @classmethod
    def of(cls, program: GraphProgram) -> Snapshot:
        """Look at a program."""
        return cls(print_program(program), op_counts(program))


@dataclass(frozen=True)
class PassResult:
    """Outcome of one pass.

    Attributes:
        program: The rewritten program (edited in place).
        changed: Whether anything changed.
        hits: Number of places rewritten.
        refusals: Places left alone, each with its reason.
    """

    program: GraphProgram
    changed: bool
    hits: int = 0
    refusals: tuple[Refusal, ...] = field(default=())


def rewrite_matches(
    program: GraphProgram, found: Iterable[M | Refusal | None], rewrite: Callable[[M], None]
) -> PassResult:
    """Rewrite what a pass matched, and keep why the rest stays.

    Args:
        program: Graph that `rewrite` edits.
        found: The result of `match` at each place: parts to rewrite, why not, or None where a place is not of the kind.
            An iterator looks at a place only after all earlier ones are rewritten.
        rewrite: Rewrites one place.
    """
    hits, refusals = 0, []
    for each in found:
        if isinstance(each, Refusal):
            refusals.append(each)
        elif each is not None:
            rewrite(each)
            hits += 1
    return PassResult(program, hits > 0, hits, tuple(refusals))


@dataclass(frozen=True)
class Pass(ABC):
    """Base of all passes; options are dataclass fields.

    Attributes:
        name: Spelling in pipeline text; the file is the same with underscores, the class in camel case.
        tier: How far the pass may move the numbers.
        role: Which programs the pass is for.
        touches_prefix: Whether the pass may change what the graph computes before its first trained layer; only passes
            that do not may differ between two programs that share a prefix cache.
        after: Names of passes that must come earlier when both are in a pipeline.
        is_legality: Whether a backend needs the pass to accept the graph (as opposed to an optimisation).
    """

    name: ClassVar[str]
    tier: ClassVar[Tier] = EXACT
    role: ClassVar[Role]
    touches_prefix: ClassVar[bool]
    after: ClassVar[frozenset[str]] = frozenset()
    is_legality: ClassVar[bool] = False

    @abstractmethod
    def run(self, program: GraphProgram) -> PassResult:
        """Rewrite `program` in place."""

    def requires(self, program: GraphProgram) -> Sequence[str]:
        """Reasons why the pass cannot run on `program`; empty if it can."""
        del program
        return ()

    def ensures(self, program: GraphProgram) -> Sequence[str]:
        """Promises of the pass that do not hold on its result; empty if all do."""
        del program
        return ()

    def __call__(self, program: GraphProgram) -> PassResult:
        """Run the pass under its contract.

        Raises:
            PassError: If a precondition, a promise or the verifier fails, or the pass itself does.
        """
        return self.run_checked(program)[0]

    def run_checked(self, program: GraphProgram, before: Snapshot | None = None) -> tuple[PassResult, Snapshot]:
        """Run the pass under its contract; return how it left the program too.

        Args:
            program: Graph to rewrite in place.
            before: Snapshot after the previous pass; None to take it here.

        Raises:
            PassError: If a precondition, a promise or the verifier fails, or the pass itself does.
        """
        self._raise_first("cannot run", self.requires(program))
        if before is None:
            # Removing nodes that were already dead is not a change by this pass.
            program.finish()
            before = Snapshot.of(program)
        try:
            result = self.run(program)
            program.finish()
        except PrgecError:
            raise
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise PassError(
                f"{self.name}: failed: {reason}", hint="please report this, with the model's config.json"
            ) from error
        after = Snapshot.of(program)
        changed = after.text != before.text
        if changed != result.changed:
            raise PassError(f"{self.name}: reported changed={result.changed}, but the graph says {changed}")
        self._raise_first("broke a promise", self.ensures(program))
        self._raise_first("produced an invalid graph", verify(program))
        return result, after

    def _raise_first(self, what: str, reasons: Sequence[str]) -> None:
        if reasons:
            raise PassError(f"{self.name}: {what}: {'; '.join(reasons)}")


def describe(node: Node) -> str:
    """One line that finds a node again: `aten.mm.default (model.py:41)`."""
    target = str(node.target)
    lines = [
        line.strip() for line in str(node.meta.get("stack_trace", "")).splitlines() if line.strip().startswith("File ")
    ]
    if not lines:
        return f"%{node.name} {target}"
    path, line_number = lines[-1].split(",")[:2]
    file_name = path.removeprefix("File ").strip('"').rpartition("/")[2]
    return f"%{node.name} {target} ({file_name}:{line_number.removeprefix(' line ')})"

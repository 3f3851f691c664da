"""Change the code in small ways, one at a time, and see whether a test fails: `make mutation`.

    python tools/mutation.py [--mutants 60] [--jobs 2] [--seed 0] [--module passes/reverse.py] [--near]

Cosmic Ray makes the mutants: another operator, another number, a condition negated. A sample of the changes of each
module that matters most runs under the tests of that module. The table says how many were killed; the survivors follow
it. The exit code is 1 where fewer than 85 % were killed.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.checks.mutant_process import Outcome, run_all

ROOT = Path(__file__).resolve().parent.parent.parent
LEAST_KILLED = 0.85
# Each module, with the files of tests that are to notice: first those of the module, then those of what it is for.
_GRADIENTS = ("passes/test_derivatives.py", "passes/test_differentiate.py")
_RUNS = ("runs/test_resume.py", "runs/test_run_limits.py")
MODULES = {
    "passes/derivatives.py": ((*_GRADIENTS, "passes/test_reverse.py"), ()),
    "passes/elementwise_derivatives.py": ((*_GRADIENTS, "passes/test_half_derivatives.py"), ()),
    "passes/reverse.py": (("passes/test_reverse.py", *_GRADIENTS), ()),
    "passes/rematerialize.py": (("passes/test_rematerialize.py", "passes/test_recomputation.py"), ()),
    "passes/insert_optimizer.py": (("passes/test_insert_optimizer.py", "passes/test_decompose_optimizer.py"), ()),
    "prgec/core/formats/journal.py": (("formats/test_journal.py",), _RUNS),
    "prgec/core/formats/journal_records.py": (("formats/test_journal.py",), _RUNS),
    "prgec/core/formats/adapter.py": (("formats/test_adapter.py",), ("cli/test_commands.py", *_RUNS)),
    "prgec/core/formats/shards.py": (("formats/test_shards.py",), ("side/test_fit.py", "remote/test_server.py")),
    "prgec/runtime/training/estimators.py": (("training/test_estimators.py", "training/test_trainer.py"), ()),
    "prgec/runtime/training/prge_trainer.py": (("training/test_trainer.py",), _RUNS),
    "prgec/runtime/training/gradient_trainer.py": (
        ("training/test_gradient_trainer.py", "training/test_accumulation.py"),
        ("runs/test_accumulated_run.py", "runs/test_objectives.py", *_RUNS),
    ),
    "prgec/runtime/training/schedules.py": (("training/test_schedules.py",), ()),
    "prgec/runtime/training/objectives.py": (("training/test_objectives.py",), ("runs/test_objectives.py",)),
    "prgec/runtime/training/limits.py": (("training/test_limits.py",), _RUNS),
}
# The other operators of Cosmic Ray change little that these do not, or annotations alone.
OPERATORS = (
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul")),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("Mod_Mul", "Pow_Mul", "RShift_LShift", "LShift_RShift")),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("BitAnd_BitOr", "BitOr_BitAnd", "BitXor_BitOr")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_Gt", "Gt_Lt")),
    *(f"ReplaceUnaryOperator_{change}" for change in ("USub_UAdd", "Delete_USub", "Delete_Not")),
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer"),
    "ZeroIterationForLoop",
)


@dataclass(frozen=True)
class Mutant:
    """A module with one change.

    Attributes:
        code: All of its text.
        line: First line that differs, from 1.
        text: That line, after the change.
        operator: Cosmic Ray's name of the change.
    """

    code: str
    line: int
    text: str
    operator: str


def mutants_of(code: str) -> Iterator[Mutant]:
    """Yield every change of a module that may change what it does."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    plain = _dump(code)
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        place = 0
        while (changed := mutate_code(code, operator, place)) is not None:
            place += 1
            if not (dump := _dump(changed)) or dump == plain:
                continue
            pairs = zip(code.splitlines(), changed.splitlines(), strict=False)
            line, text = next((n, new) for n, (old, new) in enumerate(pairs, 1) if old != new)
            # Whether a class is frozen is for readers, and so is which arguments take names alone.
            if not text.startswith("@dataclass") and text != "/,":
                yield Mutant(changed, line, text.strip(), name)


class _Plain(ast.NodeTransformer):
    """Drops annotations, which nothing reads at run time."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


def _dump(code: str) -> str:
    """Return the tree of a module without annotations; empty for text that Python does not take."""
    try:
        return ast.dump(_Plain().visit(ast.parse(code)))
    except SyntaxError:
        return ""


@dataclass(frozen=True)
class Row:
    """How the mutants of one module fared."""

    module: str
    possible: int
    outcomes: Sequence[tuple[Mutant, Outcome]]

    @property
    def survivors(self) -> list[Mutant]:
        """Mutants that no test noticed."""
        return [mutant for mutant, outcome in self.outcomes if outcome is Outcome.SURVIVED]

    def line(self) -> str:
        """A row of the table."""
        tried, left = len(self.outcomes), len(self.survivors)
        return f"| `{self.module}` | {self.possible} | {tried} | {tried - left} | {_percent(tried - left, tried)} |"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def measure(module: str, options: argparse.Namespace) -> Row:
    """Run a sample of a module's mutants.

    Raises:
        RuntimeError: If the tests fail without a change.
    """
    code = (ROOT / module).read_text(encoding="utf-8")
    found = list(mutants_of(code))
    chosen = sorted(
        random.Random(options.seed).sample(found, min(options.mutants, len(found))), key=lambda mutant: mutant.line
    )
    near, far = MODULES[module]
    ended = _run(module, [each.code for each in chosen], near, options)
    # The others run where those of the module itself saw nothing.
    left = (
        [place for place, outcome in enumerate(ended) if outcome is Outcome.SURVIVED]
        if far and not options.near
        else []
    )
    again = _run(module, [chosen[place].code for place in left], far, options) if left else []
    for place, outcome in zip(left, again, strict=True):
        ended[place] = outcome
    return Row(module, len(found), list(zip(chosen, ended, strict=True)))


def _run(module: str, codes: Sequence[str], files: Sequence[str], options: argparse.Namespace) -> list[Outcome]:
    """Run tests under each text of a module, and first under its own.

    Raises:
        RuntimeError: If the tests fail without a change.
    """
    tests = [str(ROOT / "tests" / each) for each in files]
    own = (ROOT / module).read_text(encoding="utf-8")
    ((start, seconds),) = run_all(ROOT, module, [own], tests, jobs=1, limit=600.0)
    if start is not Outcome.SURVIVED:
        raise RuntimeError(f"the tests of {module} do not pass without a change: {' '.join(files)}")
    ended = run_all(ROOT, module, codes, tests, jobs=options.jobs, limit=30 + 5 * seconds)
    return [outcome for outcome, _ in ended]


def main() -> int:
    """Print the table and the survivors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mutants", type=int, default=60, help="most mutants of a module [60]")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time [2]")
    parser.add_argument("--seed", type=int, default=0, help="of the sample [0]")
    parser.add_argument("--module", action="append", choices=MODULES, help="one of them; repeatable [all]")
    parser.add_argument("--near", action="store_true", help="the tests of the module alone, which takes minutes")
    options = parser.parse_args()
    print("| module | mutants there are | tried | killed | of those tried |\n|---|---|---|---|---|", flush=True)
    rows, begin = [], time.monotonic()
    for module in options.module or MODULES:
        rows.append(measure(module, options))
        print(rows[-1].line(), flush=True)
    tried, left = sum(len(row.outcomes) for row in rows), sum(len(row.survivors) for row in rows)
    possible, killed = sum(row.possible for row in rows), tried - left
    print(f"| all | {possible} | {tried} | {killed} | {_percent(killed, tried)} |\n\nSurvivors:\n")
    for row in rows:
        for mutant in row.survivors:
            print(f"- `{row.module}:{mutant.line}` {mutant.operator}: `{mutant.text}`")
    print(f"\n{time.monotonic() - begin:.0f} s", file=sys.stderr)
    return 0 if killed >= LEAST_KILLED * tried else 1


if __name__ == "__main__":
    sys.exit(main())

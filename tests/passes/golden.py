"""Expected texts, inline or in `tests/golden`: EXPECTTEST_ACCEPT=1 (`make golden`) rewrites both."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import expecttest

from prgec.passes.infra import Pass, PassResult
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def expect(actual: str, expected: str) -> None:
    """Compare with a triple-quoted literal in the caller."""
    expecttest.assert_expected_inline(actual, expected, skip=1)
    # Accepting would leave a copy of the old file; version control has it already.
    Path(inspect.stack()[1].filename + ".bak").unlink(missing_ok=True)


def expect_file(actual: str, name: str) -> None:
    """Compare with `tests/golden/<name>`."""
    path = GOLDEN / name
    if os.getenv("EXPECTTEST_ACCEPT"):
        path.write_text(actual)
    expecttest.assert_eq(path.read_text(), actual, msg="Accept the new text with: make golden")


def transcript(program: GraphProgram, each: Pass) -> str:
    """The text of a graph, a pass's messages, and the text afterwards (`(same)` where nothing changed)."""
    before = print_program(program)
    result = run_pass(program, each)
    after = print_program(program)
    refused = "".join(f"refused {refusal}\n" for refusal in result.refusals)
    return f"{before}--- {each.name}: {result.hits} hits\n{refused}" + (after if after != before else "(same)\n")


def run_pass(program: GraphProgram, each: Pass) -> PassResult:
    """Run a pass and check that a symbolic T is symbolic still."""
    tokens = program.placeholders()[0].meta["val"]
    was_dynamic = not isinstance(tokens.shape[1], int)
    result = each(program)
    assert not was_dynamic or tokens.shape[1].node.expr.is_Symbol, f"{each.name} fixed T at {tokens.shape[1].node.expr}"
    return result

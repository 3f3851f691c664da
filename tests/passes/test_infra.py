"""The contract around every pass: requires, run, ensures, verify, and an honest `changed`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from prgec.errors import PassError, UsageError
from prgec.passes.infra import Pass, PassResult, describe, rounding
from prgec.passes.program import GraphProgram
from prgec.passes.record import Refusal
from prgec.passes.rewrite import Rewriter
from tests.passes.builder import GraphBuilder

aten = torch.ops.aten


@dataclass(frozen=True)
class Negate(Pass):
    """Negates every output, or fails in a given way."""

    name: ClassVar[str] = "negate"

    mood: str = "honest"

    def requires(self, program: GraphProgram) -> list[str]:
        return ["it is Monday", "there is no coffee"] if self.mood == "tired" else []

    def run(self, program: GraphProgram) -> PassResult:
        if self.mood == "careless":
            raise KeyError("val")
        if self.mood == "blunt":
            raise UsageError("cannot negate politely", hint="ask again")
        rewriter = Rewriter(program, self.name)
        output = program.graph.output_node()
        if self.mood != "idle":
            for node in list(output.args[0]):
                with rewriter.before(output):
                    negated = rewriter.call(aten.neg.default, node)
                output.replace_input_with(node, negated)
                if self.mood == "sloppy":
                    del negated.meta["val"]
        return PassResult(program, self.mood not in {"modest", "idle"} or self.mood == "boastful", 1)

    def ensures(self, program: GraphProgram) -> list[str]:
        return ["an output is positive"] if self.mood == "forgetful" else []


@dataclass(frozen=True)
class Boast(Pass):
    """Claims to have changed a graph it never touched."""

    name: ClassVar[str] = "boast"

    def run(self, program: GraphProgram) -> PassResult:
        return PassResult(program, True, 1)


def _program() -> GraphProgram:
    b = GraphBuilder()
    return b.done(b.hidden())


def test_an_honest_pass_goes_through() -> None:
    assert Negate()(_program()).changed
    assert not Negate(mood="idle")(_program()).changed


@pytest.mark.parametrize(
    ("each", "text"),
    [
        (Negate(mood="tired"), "negate: cannot run: it is Monday; there is no coffee"),
        (Negate(mood="forgetful"), "negate: broke a promise: an output is positive"),
        (Negate(mood="modest"), "negate: reported changed=False, but the graph says True"),
        (Boast(), "boast: reported changed=True, but the graph says False"),
        (Negate(mood="sloppy"), "negate: produced an invalid graph: %neg_default has no value"),
        (Negate(mood="careless"), "negate: failed: 'val'. Hint: please report this, with the model's config.json"),
    ],
)
def test_failure_names_the_pass(each: Pass, text: str) -> None:
    with pytest.raises(PassError) as error:
        each(_program())
    assert str(error.value) == text


def test_failure_keeps_its_cause() -> None:
    with pytest.raises(PassError) as error:
        Negate(mood="careless")(_program())
    assert isinstance(error.value.__cause__, KeyError)


def test_user_errors_pass_through_as_they_are() -> None:
    with pytest.raises(UsageError) as error:
        Negate(mood="blunt")(_program())
    assert str(error.value) == "cannot negate politely. Hint: ask again"


def test_dead_code_in_the_input_is_nobodys_change() -> None:
    """Removing what was dead before is cleaning up, not a change of the pass."""
    b = GraphBuilder()
    b.call(aten.neg.default, b.hidden())
    program = b.program
    b.done(b.tokens)
    with Rewriter(program, "test").before(program.graph.output_node()) as rewriter:
        rewriter.call(aten.abs.default, b.tokens)
    assert not Negate(mood="idle")(program).changed


def test_describe_finds_the_source_line() -> None:
    b = GraphBuilder()
    node = b.hidden()
    assert describe(node) == "%embedding_default aten.embedding.default"
    node.meta["stack_trace"] = '  File "/somewhere/deep/model.py", line 41, in forward\n    return self.embed(tokens)\n'
    assert describe(node) == "%embedding_default aten.embedding.default (model.py:41)"


def test_refusals_and_tiers_read_well() -> None:
    assert str(Refusal("layers.0.q_proj", "is called 2 times")) == "layers.0.q_proj: is called 2 times"
    assert (rounding(1e-5).name, rounding(1e-5).tol) == ("ROUNDING", 1e-5)

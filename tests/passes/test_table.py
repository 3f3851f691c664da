"""Requirements of every row of the pass table.

Names agree, the docstring holds, a hit and a miss are tested; and on the example of each test module (`example()`,
rewritten by `PASS`): a second run changes nothing, an invalid graph is reported, and the numbers move only within the
tier. A module whose pass promises its numbers on certain inputs or outputs only has a `parity` of its own.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from prgec.errors import PassError
from prgec.passes import PASSES, load_pass, pass_table
from prgec.passes.infra import CHANGES, EXACT, Pass, Role
from prgec.passes.pipeline import check_order
from prgec.passes.printer import print_program
from prgec.passes.spec import parse_pipeline, print_pipeline
from tests.passes.builder import break_graph
from tests.passes.golden import run_pass
from tests.passes.parity import assert_parity

KINDS = ("hit", "miss")
# Their insertion is there once already, and they report that.
RUN_ONCE = {"emit-activations", "inject-lora-fa", "differentiate", "insert-optimizer", "insert-self-update"}
SECTIONS = ("Before", "After", "Requires:", "Ensures:", "Numerics:", "Why:")


@pytest.mark.parametrize("name", PASSES)
def test_spellings_agree(name: str) -> None:
    """Name, file, class and test file are one word in four spellings."""
    module = f"prgec.passes.{name.replace('-', '_')}"
    assert PASSES[name] == f"{module}:{name.title().replace('-', '')}"
    cls = load_pass(name)
    assert cls.name == name
    assert (cls.__module__, cls.__name__) == tuple(PASSES[name].split(":"))
    assert _test_file(name).is_file()


@pytest.mark.parametrize("name", PASSES)
def test_class(name: str) -> None:
    cls = load_pass(name)
    assert issubclass(cls, Pass)
    each = cls()
    assert each == cls() and hash(each) == hash(cls())
    with pytest.raises(dataclasses.FrozenInstanceError):
        each.anything = 1  # type: ignore[attr-defined]
    assert cls.__doc__ and not cls.__doc__.startswith(cls.__name__ + "(")
    missing = {field.name for field in dataclasses.fields(cls)} - set(re.findall(r"^\s+(\w+): ", cls.__doc__, re.M))
    assert not missing, f"options without a line in the docstring: {missing}"
    assert (cls.tier == EXACT) == (cls.tier.tol == 0.0)


@pytest.mark.parametrize("name", PASSES)
def test_role_and_prefix_are_declared_on_the_pass_itself(name: str) -> None:
    own = vars(load_pass(name))
    assert isinstance(own.get("role"), Role)
    assert isinstance(own.get("touches_prefix"), bool)


@pytest.mark.parametrize("name", PASSES)
def test_docstring(name: str) -> None:
    doc = _module_docstring(name)
    assert [section for section in SECTIONS if section not in doc] == []
    first_line = doc.splitlines()[0]
    assert first_line.endswith((".", ":", ",")) and len(first_line) < 120
    assert re.search(r"Numerics: (\w+)", doc)[1] == load_pass(name).tier.name  # type: ignore[index]


@pytest.mark.parametrize("name", PASSES)
def test_sketch_is_what_the_pass_does(name: str) -> None:
    """Ops of the sketch occur in the example; those only Before get fewer, those only After get more."""
    doc = _module_docstring(name)
    sketch_before, sketch_after = (
        _ops(part) for part in doc.partition("\nBefore")[2].split("Requires:")[0].split("\nAfter", 1)
    )
    tests = _tests(name)
    program = tests.example()
    before = _op_counts(print_program(program))
    tests.PASS(program)
    after = _op_counts(print_program(program))
    assert sketch_before <= before.keys() and sketch_after <= after.keys()
    assert [op for op in sketch_before - sketch_after if after.get(op, 0) >= before[op]] == []
    assert [op for op in sketch_after - sketch_before if after[op] <= before.get(op, 0)] == []


@pytest.mark.parametrize("name", PASSES)
def test_a_second_run_changes_nothing(name: str) -> None:
    tests = _tests(name)
    program = tests.example()
    assert run_pass(program, tests.PASS).changed
    if name in RUN_ONCE:
        with pytest.raises(PassError, match=f"^{name}: cannot run: the graph .* already$"):
            tests.PASS(program)
    else:
        assert not run_pass(program, tests.PASS).changed


@pytest.mark.parametrize("name", PASSES)
def test_an_invalid_graph_is_reported(name: str) -> None:
    tests = _tests(name)
    program = tests.example()
    break_graph(program)
    with pytest.raises(PassError) as error:
        tests.PASS(program)
    assert str(error.value) == (
        f"{name}: produced an invalid graph: %relu is a call_method; only functions are allowed"
    )


@pytest.mark.parametrize("name", [name for name, cls in pass_table().items() if cls.tier != CHANGES])
def test_parity_at_the_declared_tier(name: str) -> None:
    tests = _tests(name)
    getattr(tests, "parity", assert_parity)(tests.example(), tests.PASS)


@pytest.mark.parametrize("name", [name for name, cls in pass_table().items() if cls.tier == CHANGES])
def test_what_changes_the_function_has_a_parity_test_of_its_own(name: str) -> None:
    assert any(each.startswith("test_parity_") for each in vars(_tests(name)))


@pytest.mark.parametrize("name", PASSES)
def test_all_kinds_of_tests_exist(name: str) -> None:
    tree = ast.parse(_test_file(name).read_text())
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    missing = [kind for kind in KINDS if not any(re.match(f"test_{kind}(_|$)", each) for each in functions)]
    assert not missing, f"{_test_file(name).name} lacks {missing}"
    assert "example" in functions


def test_the_order_of_the_table_keeps_every_constraint() -> None:
    check_order([cls() for cls in pass_table().values()])


def test_constraints_name_passes_of_the_table() -> None:
    assert {name for cls in pass_table().values() for name in cls.after} <= PASSES.keys()


def test_the_whole_table_is_a_pipeline_text() -> None:
    passes = tuple(cls() for cls in pass_table().values())
    assert print_pipeline(passes) == ",".join(PASSES)
    assert parse_pipeline(",".join(PASSES), pass_table()) == passes


def test_only_the_training_step_and_quantisation_change_the_function() -> None:
    changing = [name for name, cls in pass_table().items() if cls.tier == CHANGES]
    assert changing == [
        "emit-activations",
        "insert-self-update",
        "differentiate",
        "insert-optimizer",
        "quantize-base",
        "quantize-embedding",
        "narrow-weights",
    ]


def _tests(name: str) -> ModuleType:
    return importlib.import_module(f"tests.passes.test_{name.replace('-', '_')}")


def _module_docstring(name: str) -> str:
    load_pass(name)
    return sys.modules[PASSES[name].partition(":")[0]].__doc__ or ""


def _test_file(name: str) -> Path:
    return Path(__file__).with_name(f"test_{name.replace('-', '_')}.py")


def _ops(text: str) -> set[str]:
    """Ops without their overloads: a sketch leaves those out where they say nothing."""
    return {".".join(op.split(".")[:2]) for op in re.findall(r"\b(?:aten|prge)\.[\w.]+", text)}


def _op_counts(text: str) -> dict[str, int]:
    found = [".".join(op.split(".")[:2]) for op in re.findall(r"= ((?:aten|prge)\.[\w.]+)", text)]
    return {op: found.count(op) for op in found}

"""The `prefix` method: what comes before the first trained layer, and a forward that takes its result."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from prgec.compiler.frontend.model import export_loss
from prgec.errors import InternalError
from prgec.passes import pass_table
from prgec.passes.dualize import Dualize
from prgec.passes.extract_apply import extract_apply
from prgec.passes.extract_prefix import extract_prefix, find_shared_prefix
from prgec.passes.insert_self_update import InsertSelfUpdate
from prgec.passes.pipeline import run_pipeline
from prgec.passes.printer import print_program
from prgec.passes.program import GraphProgram
from prgec.passes.share_prefix import SharePrefix
from prgec.passes.spec import parse_pipeline
from tests.architectures import ARCHITECTURES, architecture
from tests.passes.builder import row_inputs, seq_lens
from tests.passes.golden import expect, run_pass
from tests.passes.parity import assert_close, run, set_state, state_of
from tests.passes.test_share_prefix import example


def _program(*, dynamic: bool = True) -> GraphProgram:
    program = example(dynamic=dynamic)
    for each in (SharePrefix(q=2), Dualize(q=2), InsertSelfUpdate()):
        run_pass(program, each)
    return program


def test_two_graphs() -> None:
    program = example()
    run_pass(program, SharePrefix(q=2))
    prefix = extract_prefix(program)
    expect(
        print_program(prefix) + print_program(program),
        """\
graph(tokens: i64[2, T]):
  %0: f32[2, T, 4] = aten.embedding(@embed.weight, tokens)
  %1: f32[2, T, 4] = aten.linear(%0, @layers.0.weight)
  %2: f32[2, T, 4] = aten.add(%0, %1)
  return %2
graph(tokens: i64[8, T], label_pos: i64[8, 2], targets: i64[8, 2], hidden: f32[2, T, 4]):
  %0: f32[1, 2, T, 4] = aten.view(hidden, [1, 2, -1, 4])
  %1: f32[4, 2, T, 4] = aten.add(%0, @folded.c0)
  %2: f32[8, T, 4] = aten.view(%1, [8, -1, 4])
  %3: f32[8, T, 2] = aten.linear(%2, @layers.1.lora_A)
  %4: f32[8, T, 4] = aten.matmul(%3, @layers.1.lora_B)
  %5: f32[8, T, 4] = aten.add(%2, %4)
  return %5
""",
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_forward_of_prefix_is_the_whole_bit_for_bit(dynamic: bool) -> None:
    whole, forward = _program(dynamic=dynamic), _program(dynamic=dynamic)
    prefix = extract_prefix(forward)
    for length in seq_lens(whole):
        inputs = row_inputs(whole, seed=length, seq_len=length)
        (hidden,) = run(prefix, (inputs[0][:2],))
        assert hidden.shape == (2, length, 4)
        assert torch.equal(run(forward, (*inputs, hidden))[0], run(whole, inputs)[0])
        assert all(torch.equal(value, state_of(whole)[name]) for name, value in state_of(forward).items())


def test_forward_reads_the_hidden_states_it_is_given() -> None:
    program = _program()
    inputs, state = row_inputs(program), state_of(program)
    (hidden,) = run(extract_prefix(program), (inputs[0][:2],))
    before = run(program, (*inputs, hidden))[0]
    set_state(program, state)
    hidden[1, 3] += 1.0
    moved = run(program, (*inputs, hidden))[0] != before
    assert moved.any(-1).nonzero().tolist() == [[row, 3] for row in (1, 3, 5, 7)]


def test_prefix_changes_no_state_and_holds_none() -> None:
    program = _program()
    prefix = extract_prefix(program)
    assert prefix.state_names() == []
    assert sorted(name for name, _ in prefix.module.named_buffers()) == ["embed.weight", "layers.0.weight"]
    assert program.state_names() == ["layers.1.lora_B"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_both_methods_export_with_one_t(dynamic: bool) -> None:
    program = _program(dynamic=dynamic)
    prefix = extract_prefix(program)
    for each in (program, prefix):
        ranges = list(each.to_exported().range_constraints.values())
        assert [(int(r.lower), int(r.upper)) for r in ranges] == ([(2, 8)] if dynamic else [])


def test_apply_can_be_extracted_before_and_after() -> None:
    program = _program()
    before = print_program(extract_apply(program))
    extract_prefix(program)
    assert print_program(extract_apply(program)) == before


def test_a_program_whose_prefix_is_not_shared() -> None:
    assert find_shared_prefix(example()) is None
    with pytest.raises(InternalError, match="^the program has no shared prefix$"):
        extract_prefix(example())


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in ARCHITECTURES])
def test_every_architecture(name: str) -> None:
    """The last of two blocks is trained: whole, shared and split agree, step by step."""
    found = architecture(name)
    depth = "n_layer" if "n_layer" in found.options else "num_hidden_layers"
    model = replace(found, options={**found.options, depth: max(2, found.options[depth])}).build()
    whole, shared, forward = (_trained_last(model, text) for text in ("", "share-prefix{q=2},", "share-prefix{q=2},"))
    prefix = extract_prefix(forward)
    for step, length in enumerate((9, 16, 9)):
        tokens, *labels = row_inputs(whole, seed=step, seq_len=length)
        first_rows = tokens[:2]
        inputs = (first_rows.repeat(4, 1), *labels)
        (losses,) = run(whole, inputs)
        (hidden,) = run(prefix, (first_rows,))
        assert_close(run(shared, inputs), (losses,), SharePrefix.tier)
        assert_close(run(forward, (*inputs, hidden)), (losses,), SharePrefix.tier)
    assert all(value.any() for value in state_of(whole).values())


def _trained_last(model: torch.nn.Module, share: str) -> GraphProgram:
    program = export_loss(model, num_rows=8, seq_len=16, num_labels=1, dynamic=True)
    text = (
        "canonicalize,fold-constants,addmm-to-linear,select-label-tokens,inject-lora-fa{rank=4 layers=last:1},"
        f"{share}dualize{{q=2}},insert-self-update"
    )
    run_pipeline(program, parse_pipeline(text, pass_table()))
    return program

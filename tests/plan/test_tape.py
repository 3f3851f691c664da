"""Bytes alive at once, and the excess of the arena, on tapes small enough to count by hand."""

from __future__ import annotations

import pytest

from prgec.compiler.plan.arena import Span, arena_bytes, live_bytes, spans_of
from prgec.compiler.plan.op import Op
from prgec.compiler.plan.source import read_shape
from prgec.compiler.plan.step import step_sizes
from prgec.compiler.plan.tape import Tape
from prgec.compiler.plan.workload import Workload


def test_the_peak_is_the_worst_moment() -> None:
    tape = Tape()
    x = tape.put("external", 10)
    a = tape.put("linear", 10, x)
    b = tape.put("linear", 30, a)
    tape.put("linear", 5, b)
    assert _live(tape) == 4 * (10 + 30)


def test_what_is_read_again_later_stays() -> None:
    tape = Tape()
    a = tape.put("linear", 10)
    b = tape.put("linear", 30, a)
    tape.put("linear", 5, b, a)
    assert _live(tape) == 4 * (10 + 30 + 5)


def test_an_elementwise_operation_overwrites_what_nothing_else_reads() -> None:
    tape = Tape()
    a = tape.put("linear", 10)
    b = tape.put("mul", 10, a)
    tape.put("linear", 1, b)
    assert _live(tape) == 4 * (10 + 1)


def test_it_does_not_where_another_operation_reads_it() -> None:
    tape = Tape()
    a = tape.put("linear", 10)
    b = tape.put("mul", 10, a)
    tape.put("linear", 1, b)
    tape.put("linear", 1, a)
    assert _live(tape) == 4 * (10 + 10 + 1)


def test_results_and_inputs_lie_elsewhere() -> None:
    tape = Tape()
    x = tape.put("external", 100)
    tape.keep(tape.put("linear", 100, x))
    assert _live(tape) == 0


def test_scratch_memory_counts_while_an_operation_runs() -> None:
    tape = Tape()
    a = tape.put("linear", 10)
    tape.add(Op("bmm", 5, (a,), scratch_bytes=70))
    assert _live(tape) == 4 * (10 + 5) + 70


def test_matrices_are_packed_in_whole_tiles() -> None:
    tape = Tape()
    tape.add(Op("linear", 1, matrix=(8, 16), is_frozen=True))
    tape.add(Op("linear", 1, matrix=(8, 1)))
    assert tape.constants() == {(8, False): 8 * 16, (0, False): 8 * 16}


def test_gradients_are_multiplied_with_copies_of_eight_bits() -> None:
    """Four bits take from layers what eight do not, and nothing from their copies."""
    shape = read_shape("TinyLlama-1.1B")

    def saved(method: str) -> float:
        narrow, wide = (step_sizes(shape, Workload(method, scheme)).constant_bytes for scheme in ("8da4w", "8da8w"))
        return wide - narrow

    assert saved("exact") == pytest.approx(saved("prge"), rel=1e-6)
    for scheme in ("none", "8da8w", "w4a16"):
        assert Workload("exact", scheme).weight_bytes(32, is_copy=True) == Workload("exact", scheme).weight_bytes(32)


def test_a_transpose_that_a_product_alone_packs_is_not_made() -> None:
    tape = Tape()
    a, b = tape.put("linear", 10), tape.put("linear", 20)
    swapped = tape.put("transpose", 20, b)
    tape.add(Op("bmm", 5, (a, swapped)))
    assert _live(tape) == 4 * (10 + 20 + 5)


def test_a_transpose_that_comes_first_in_a_product_is_made() -> None:
    tape = Tape()
    a, b = tape.put("linear", 10), tape.put("linear", 20)
    swapped = tape.put("transpose", 10, a)
    tape.put("linear", 1, a)
    tape.add(Op("bmm", 5, (swapped, b)))
    assert _live(tape) == 4 * (10 + 20 + 10 + 1)


def test_a_batch_of_products_packs_its_second_factor_with_a_row_of_zeros() -> None:
    tape = Tape()
    a, b = tape.put("external", 6), tape.put("external", 12)
    tape.bmm(8, a, b, products=8 * 3)
    assert _live(tape) == 4 * (8 + 12 + 12 // 3)


def test_values_without_gaps_take_what_is_alive() -> None:
    spans = [Span(0, 1, 40), Span(1, 2, 30), Span(2, 3, 40)]
    assert arena_bytes(spans) == live_bytes(spans) == 70


def test_a_gap_that_is_too_small_stays_empty() -> None:
    """50, 50 above it, 40 in the place of the first: 20 fit neither the 10 above the 40 nor anywhere below 100."""
    spans = [Span(1, 3, 50), Span(3, 4, 50), Span(4, 5, 40), Span(4, 5, 20)]
    assert live_bytes(spans) == 110
    assert arena_bytes(spans) == 120


def _live(tape: Tape) -> int:
    return live_bytes(spans_of(tape.ops))

"""What is alive at once, on tapes small enough to count by hand."""

from __future__ import annotations

from prgec.plan.tape import Op, Tape


def test_the_peak_is_the_worst_moment() -> None:
    tape = Tape()
    x = tape.put("external", 10)
    a = tape.put("linear", 10, x)
    b = tape.put("linear", 30, a)
    tape.put("linear", 5, b)
    assert tape.peak_bytes() == 4 * (10 + 30)


def test_what_is_read_again_later_stays() -> None:
    tape = Tape()
    a = tape.put("linear", 10)
    b = tape.put("linear", 30, a)
    tape.put("linear", 5, b, a)
    assert tape.peak_bytes() == 4 * (10 + 30 + 5)


def test_an_elementwise_operation_overwrites_what_nothing_else_reads() -> None:
    tape = Tape()
    a = tape.put("linear", 10)
    b = tape.put("mul", 10, a)
    tape.put("linear", 1, b)
    assert tape.peak_bytes() == 4 * (10 + 1)


def test_it_does_not_where_another_operation_reads_it() -> None:
    tape = Tape()
    a = tape.put("linear", 10)
    b = tape.put("mul", 10, a)
    tape.put("linear", 1, b)
    tape.put("linear", 1, a)
    assert tape.peak_bytes() == 4 * (10 + 10 + 1)


def test_results_and_inputs_lie_elsewhere() -> None:
    tape = Tape()
    x = tape.put("external", 100)
    tape.keep(tape.put("linear", 100, x))
    assert tape.peak_bytes() == 0


def test_scratch_memory_counts_while_an_operation_runs() -> None:
    tape = Tape()
    a = tape.put("linear", 10)
    tape.add(Op("bmm", 5, (a,), scratch_bytes=70))
    assert tape.peak_bytes() == 4 * (10 + 5) + 70


def test_matrices_are_packed_in_whole_tiles() -> None:
    tape = Tape()
    tape.add(Op("linear", 1, matrix=(8, 16), is_frozen=True))
    tape.add(Op("linear", 1, matrix=(8, 1)))
    assert tape.constants() == {8: 8 * 16, 0: 8 * 16}

"""Budgets as people write them."""

from __future__ import annotations

import pytest

from prgec.compiler.plan.units import bytes_text, parse_bytes, parse_seconds, seconds_text
from prgec.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"), [("4G", 4e9), ("512 MB", 512e6), ("1.5GiB", 1.5 * 2**30), ("70000000", 7e7), (" 2kib", 2048)]
)
def test_bytes(text: str, expected: float) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("90m", 5400), ("2h", 7200), ("1.5d", 129600), ("30", 30)])
def test_seconds(text: str, expected: float) -> None:
    assert parse_seconds(text) == expected


@pytest.mark.parametrize("text", ["4X", "G", "", "-4G", "0", "4 G B", "nan", "1e3G"])
def test_no_such_size(text: str) -> None:
    with pytest.raises(UsageError, match="--memory is .*Hint: write bytes as 512M"):
        parse_bytes(text)


def test_a_unit_of_another_kind_is_named() -> None:
    with pytest.raises(UsageError, match="there is no unit 'h'"):
        parse_bytes("4h")
    with pytest.raises(UsageError, match="there is no unit 'G'"):
        parse_seconds("4G")


def test_sizes_and_times_for_people() -> None:
    assert [bytes_text(649e6), bytes_text(4.606e9)] == ["649 MB", "4.61 GB"]
    assert [seconds_text(each) for each in (12, 2100, 8640, 1e6)] == ["12 s", "35 min", "2.4 h", "11.6 days"]

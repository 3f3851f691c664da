"""Philox4x32-10 against the known answers published with Random123 (kat_vectors)."""

from __future__ import annotations

import pytest
import torch

from prgec.runtime_ops.philox import philox4x32

ONES = 0xFFFFFFFF
KNOWN_ANSWERS = {
    "zeros": ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "digits of pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}


@pytest.mark.parametrize("name", KNOWN_ANSWERS)
def test_known_answers(name: str) -> None:
    counter, key, expected = KNOWN_ANSWERS[name]
    words = philox4x32(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(int(word) for word in words) == expected


def test_counters_broadcast() -> None:
    counter = [torch.tensor(row) for row in zip(*(answer[0] for answer in KNOWN_ANSWERS.values()), strict=True)]
    key = [torch.tensor(row) for row in zip(*(answer[1] for answer in KNOWN_ANSWERS.values()), strict=True)]
    words = torch.stack(philox4x32(tuple(counter), tuple(key)), dim=-1)
    assert words.tolist() == [list(answer[2]) for answer in KNOWN_ANSWERS.values()]

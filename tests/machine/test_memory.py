"""Memory is what the kernel says; growth counts what is added, and nothing else."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from prgec.core.machine.memory import Growth, SampledGrowth, give_back_freed, process_memory, resident_memory_bytes

MB = 2**20


def test_growth_counts_what_is_held_for_a_moment() -> None:
    growth = Growth()
    held = b"x" * 200 * MB
    del held
    growth.pause()
    assert 195 * MB < growth.bytes < 230 * MB


def test_what_was_freed_before_hides_nothing() -> None:
    # Small blocks stay with the process when they are freed, and would be used again.
    held: list[bytes] = [b"%d" % number * 100 for number in range(300_000)]
    size = sum(map(len, held))
    held.clear()
    growth = Growth()
    held += [b"%d" % number * 100 for number in range(300_000)]
    growth.pause()
    assert 0.9 * size < growth.bytes < 1.5 * size


def test_what_was_freed_goes_back() -> None:
    held = [b"%d" % number * 200 for number in range(50_000)]
    size = sum(map(len, held))
    # One block at the end keeps the heap from shrinking by itself.
    held[:-1] = []
    before = process_memory().anon_bytes
    give_back_freed()
    assert before - process_memory().anon_bytes > 0.8 * size


def test_growth_leaves_out_pauses_and_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"w" * 100 * MB)
    growth = Growth()
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[place] for place in range(0, len(mapped), 4096))
        growth.pause()
    held = b"x" * 300 * MB
    del held
    growth.go_on()
    growth.pause()
    assert growth.bytes < 30 * MB


def test_pages_of_files_that_came_and_went_are_no_growth(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"w" * 100 * MB)
    growths = []
    for make in (Growth, SampledGrowth):
        growth = make()
        with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert sum(mapped[place] for place in range(0, len(mapped), 4096))
            held = b"x" * 50 * MB
            time.sleep(0.2)
            del held
        growth.pause()
        growths.append(growth.bytes)
    by_mark, sampled = growths
    assert by_mark > 140 * MB, "the kernel's mark has them in it"
    assert 45 * MB < sampled < 80 * MB


def test_what_is_held_for_a_moment_is_sampled() -> None:
    growth = SampledGrowth()
    # One call, which keeps Python's lock: 60 MB are made, and both are held while the bytes are copied.
    grown = bytes(bytearray(b"x" * 1000) * 60_000)
    growth.pause()
    assert len(grown) == 60_000_000
    assert 110e6 < growth.bytes < 130e6


def test_weights_that_are_written_to_are_no_growth(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"w" * 100 * MB)
    with (tmp_path / "weights").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        assert sum(mapped[place] for place in range(0, len(mapped), 4096))
        growth = Growth()
        for place in range(0, len(mapped), 4096):
            mapped[place] = 0
        growth.pause()
    assert growth.bytes < 20 * MB


def test_a_process_that_is_no_more_holds_nothing() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert process_memory(pid).rss_bytes == 0
    assert process_memory(os.getpid()).anon_bytes > MB
    assert resident_memory_bytes() > 10 * MB

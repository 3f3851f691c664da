"""Hidden states are kept on disk: found again, never mistaken for others, never half read.

Letters: B examples a step, N = 2qB rows, T tokens, K label positions, D model width.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prgec.core.contract.manifest import Manifest, Site
from prgec.errors import UsageError
from prgec.runtime.engines.executorch.open import open_pte
from prgec.runtime.engines.prefix import FloatArray, HiddenCache, IntArray, PrefixRunner

WIDTH, PAD = 6, 2
MANIFEST = Manifest(
    model="m",
    architecture="A",
    backend="portable",
    q=2,
    batch_size=2,
    seq_len=16,
    dynamic_seq_len=True,
    num_labels=2,
    vocab_size=50,
    rank=4,
    alpha=8.0,
    a_seed=0,
    state="seeded",
    quantize="none",
    sites=(Site("layers.2.up", 0, 6, 9),),
    pipeline="dualize{q=2}",
    base_sha256="ab" * 32,
    pad_token_id=PAD,
    prefix="method",
    hidden_size=WIDTH,
    prefix_sha256="ef" * 32,
)
ROW = np.array([5, 6, 7, 8], dtype=np.int64)
HIDDEN = np.linspace(-3.0, 3.0, 4 * WIDTH, dtype=np.float32).reshape(4, WIDTH)


def _cache(folder: Path, manifest: Manifest = MANIFEST) -> HiddenCache:
    return HiddenCache(folder, manifest, "executorch")


def _rounded(hidden: FloatArray) -> FloatArray:
    return hidden.astype(np.float16).astype(np.float32)


def _entry(folder: Path) -> Path:
    """The one file of a cache."""
    (path,) = [path for path in folder.rglob("*") if path.is_file()]
    return path


def test_hit(tmp_path: Path) -> None:
    assert np.array_equal(_cache(tmp_path).put(ROW, HIDDEN), _rounded(HIDDEN))
    found = _cache(tmp_path).get(ROW)
    assert found is not None and found.dtype == np.float32
    assert np.array_equal(found, _rounded(HIDDEN))
    assert _entry(tmp_path).stat().st_size == 2 * HIDDEN.size + 8


@pytest.mark.parametrize("tokens", [[5, 6, 7], [5, 6, 7, 8, 2], [5, 6, 8, 7], [6, 7, 8]])
def test_miss(tmp_path: Path, tokens: list[int]) -> None:
    cache = _cache(tmp_path)
    cache.put(ROW, HIDDEN)
    assert cache.get(np.array(tokens, dtype=np.int64)) is None


def test_programs_share_a_cache_where_their_prefixes_compute_the_same(tmp_path: Path) -> None:
    """Training after the prefix has no effect on it."""
    _cache(tmp_path).put(ROW, HIDDEN)
    other = replace(MANIFEST, q=1, batch_size=8, rank=8, a_seed=3, num_labels=1, pipeline="dualize{q=1}")
    assert _cache(tmp_path, other).get(ROW) is not None
    assert _cache(tmp_path, replace(MANIFEST, prefix_sha256="cd" * 32)).get(ROW) is None


def test_engines_do_not_share_a_cache(tmp_path: Path) -> None:
    _cache(tmp_path).put(ROW, HIDDEN)
    assert HiddenCache(tmp_path, MANIFEST, "torch cpu").get(ROW) is None


@pytest.mark.parametrize("change", [{}, {"pipeline": "dualize{q=2},narrow-weights{dtype=f16}"}, {"backend": "qnn"}])
def test_a_program_that_does_not_say_what_its_prefix_computes_shares_with_none(
    tmp_path: Path, change: dict[str, str]
) -> None:
    old = replace(MANIFEST, prefix_sha256="")
    _cache(tmp_path, old).put(ROW, HIDDEN)
    assert (_cache(tmp_path, replace(old, **change)).get(ROW) is not None) == (not change)  # type: ignore[arg-type]
    assert _cache(tmp_path).get(ROW) is None


@pytest.mark.parametrize("keep", [0, 3, 8, 31, 55])
def test_torn_tail(tmp_path: Path, keep: int) -> None:
    cache = _cache(tmp_path)
    cache.put(ROW, HIDDEN)
    path = _entry(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    assert cache.get(ROW) is None
    cache.put(ROW, HIDDEN)
    assert cache.get(ROW) is not None


@pytest.mark.parametrize("position", [0, 4, 8, 40])
def test_damage(tmp_path: Path, position: int) -> None:
    cache = _cache(tmp_path)
    cache.put(ROW, HIDDEN)
    raw = bytearray(_entry(tmp_path).read_bytes())
    raw[position] ^= 0x10
    _entry(tmp_path).write_bytes(raw)
    assert cache.get(ROW) is None
    _entry(tmp_path).write_bytes(bytes(len(raw)))
    assert cache.get(ROW) is None


def test_values_too_large_for_f16(tmp_path: Path) -> None:
    """Some models have hidden states in the millions; f16 ends at 65504."""
    large = HIDDEN * np.float32(1e6)
    kept = _cache(tmp_path).put(ROW, large)
    assert np.isfinite(kept).all()
    np.testing.assert_allclose(kept, large, rtol=1e-3)


@pytest.mark.parametrize("value", [0.0, 65504.0, 65505.0, 131008.0, 3.4e38, float("inf")])
def test_limits(tmp_path: Path, value: float) -> None:
    hidden = np.full((4, WIDTH), value, dtype=np.float32)
    np.testing.assert_allclose(_cache(tmp_path).put(ROW, hidden), hidden, rtol=1e-3)


def test_a_full_disk_is_no_reason_to_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rows keep their rounding, one warning says so, and nothing tries again."""
    cache = _cache(tmp_path)
    (folder,) = tmp_path.iterdir()
    folder.rmdir()
    for row in (ROW, ROW[:3]):
        assert np.array_equal(cache.put(row, HIDDEN[: len(row)]), _rounded(HIDDEN[: len(row)]))
    assert [record.message for record in caplog.records] == [
        f"the prefix cache keeps no more rows: No such file or directory ({folder})"
    ]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(UsageError, match=r"^cannot use the prefix cache: Not a directory \(.*file\)$"):
        _cache(path)


def _put_many(folder: Path, seed: int) -> None:
    cache = _cache(folder)
    for number in np.random.default_rng(seed).permutation(40):
        cache.put(np.full(4, number, dtype=np.int64), HIDDEN + np.float32(number))


def test_two_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_put_many, args=(tmp_path, seed)) for seed in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    cache = _cache(tmp_path)
    for number in range(40):
        found = cache.get(np.full(4, number, dtype=np.int64))
        assert found is not None
        assert np.array_equal(found, _rounded(HIDDEN + np.float32(number)))
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 40


class Prefix:
    """A causal function of tokens that counts its calls: running sums, one weight for each of D columns."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, tokens_BT: IntArray) -> FloatArray:
        self.num_calls += 1
        sums_BT = tokens_BT.cumsum(1).astype(np.float32)
        result: FloatArray = sums_BT[:, :, None] * np.linspace(0.1, 0.7, WIDTH, dtype=np.float32)
        return result


def _batch(rows: list[list[int]], length: int, *, last: int | None = None) -> tuple[IntArray, IntArray]:
    """Rows padded to `length` and repeated for every query and sign, with label positions up to each row's end."""
    tokens = np.full((len(rows), length), PAD, dtype=np.int64)
    label_pos = np.zeros((len(rows), 2), dtype=np.int64)
    for n, row in enumerate(rows):
        tokens[n, : len(row)] = row
        label_pos[n, 0] = len(row) - 1 if last is None else last
    return np.tile(tokens, (4, 1)), np.tile(label_pos, (4, 1))


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[], tuple[PrefixRunner, Prefix]]:
    """A fresh runner on the same cache, with its prefix."""

    def make() -> tuple[PrefixRunner, Prefix]:
        prefix = Prefix()
        runner = PrefixRunner(prefix, MANIFEST, "executorch")
        runner.keep_in(tmp_path)
        return runner, prefix

    return make


def test_without_a_cache_every_call_computes_the_first_b_rows() -> None:
    prefix = Prefix()
    runner = PrefixRunner(prefix, MANIFEST, "executorch")
    for _ in range(2):
        assert np.array_equal(runner.hidden(*_batch([[3, 4], [5]], 4)), Prefix()(_batch([[3, 4], [5]], 4)[0][:2]))
    assert prefix.num_calls == 2


def test_kept_and_fresh_are_the_same_values(kept: Callable[[], tuple[PrefixRunner, Prefix]]) -> None:
    batch = _batch([[3, 4, 9], [5]], 4)
    first, first_prefix = kept()
    again, again_prefix = kept()
    fresh = first.hidden(*batch)
    assert np.array_equal(again.hidden(*batch), fresh)
    assert (first_prefix.num_calls, again_prefix.num_calls) == (1, 0)
    expected = _rounded(Prefix()(batch[0][:2]))
    expected[0, 3:], expected[1, 1:] = 0, 0
    assert np.array_equal(fresh, expected)


def test_padding_does_not_matter(kept: Callable[[], tuple[PrefixRunner, Prefix]], tmp_path: Path) -> None:
    """The same rows in batches of another T are the same entries."""
    runner, prefix = kept()
    short = runner.hidden(*_batch([[3, 4, 9], [5]], 3))
    long = runner.hidden(*_batch([[5], [3, 4, 9]], 11))
    assert prefix.num_calls == 1
    assert np.array_equal(long[1, :3], short[0]) and np.array_equal(long[0, :3], short[1])
    assert not long[:, 3:].any()
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_only_rows_that_are_missing_are_computed(kept: Callable[[], tuple[PrefixRunner, Prefix]]) -> None:
    runner, prefix = kept()
    runner.hidden(*_batch([[3, 4], [5]], 2))
    runner.hidden(*_batch([[5], [3, 4]], 2))
    assert prefix.num_calls == 1
    mixed = runner.hidden(*_batch([[5], [7, 7]], 2))
    assert prefix.num_calls == 2
    assert np.array_equal(mixed[1], _rounded(Prefix()(np.array([[7, 7]]))[0]))


def test_the_same_row_twice_in_a_batch(kept: Callable[[], tuple[PrefixRunner, Prefix]], tmp_path: Path) -> None:
    runner, prefix = kept()
    hidden = runner.hidden(*_batch([[3, 4], [3, 4]], 2))
    assert np.array_equal(hidden[0], hidden[1]) and hidden.any()
    assert prefix.num_calls == 1


def test_a_row_that_ends_in_the_padding_token(kept: Callable[[], tuple[PrefixRunner, Prefix]]) -> None:
    """Its last label says that the token is part of the row."""
    runner, _ = kept()
    assert runner.hidden(*_batch([[3, PAD], [5]], 4))[0, 1].any()
    assert runner.hidden(*_batch([[3, 4, 9], [5]], 4, last=0))[0, 2].any()


def test_a_program_without_a_prefix_method(tiny_pte: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        open_pte(tiny_pte).keep_prefix_in(tmp_path / "cache")
    assert str(caught.value) == (
        f"the program has no prefix method whose results could be kept ({tiny_pte}). "
        "Hint: compile it with --layers last:K --prefix method"
    )
    assert not (tmp_path / "cache").exists()

"""A program that was compiled before is copied: the same bytes, whole, and for the same inputs only."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prgec.compiler.cache_key import cache_key
from prgec.compiler.cached import compile_cached
from prgec.compiler.frontend.checkpoint import find_checkpoint
from prgec.compiler.options import CompileOptions
from prgec.compiler.program_cache import ProgramCache
from prgec.compiler.result import CompileResult
from prgec.core.data.records import HUB_PREFIX
from prgec.errors import UsageError
from tests.architectures import architecture

SIZES: dict[str, Any] = {"batch_size": 2, "seq_len": 16, "num_labels": 2, "rank": 4, "alpha": 8.0}
# Prints which of the slow libraries were there when the export began and in the end, and whether it was a copy.
COMPILE = """
import sys
from pathlib import Path
from prgec.compiler.cached import compile_cached
from prgec.compiler.options import CompileOptions
def listener(progress):
    if progress.stage == "export":
        print("executorch.exir" in sys.modules)
options = CompileOptions(model=sys.argv[1], output=Path(sys.argv[2]), method="exact", **{sizes})
print(compile_cached(options, listener).is_copy, "torch" in sys.modules, "executorch" in sys.modules)
"""


def compile_apart(model: Path, output: Path, cache: Path) -> list[str]:
    command = [sys.executable, "-c", COMPILE.replace("{sizes}", repr(SIZES)), str(model), str(output)]
    environment = {**os.environ, "PRGEC_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return architecture("Llama").write(tmp_path_factory.mktemp("cache-model") / "llama")


@pytest.fixture(scope="module")
def first(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with the cache and the first program, and what its compilation printed."""
    folder = tmp_path_factory.mktemp("cached")
    return folder, compile_apart(model, folder / "first.pte", folder)


@pytest.fixture
def kept(first: tuple[Path, list[str]], model: Path, tmp_path: Path) -> tuple[ProgramCache, str, CompileResult]:
    """A cache of the test's own with one program in it."""
    folder, _ = first
    shutil.copytree(folder / "programs", tmp_path / "programs")
    cache = ProgramCache(tmp_path / "programs")
    key = key_of(options_of(model))
    result = cache.copy_to(key, tmp_path / "copy.pte")
    assert result is not None
    return cache, key, result


def options_of(model: Path, **changes: Any) -> CompileOptions:
    return CompileOptions(model=str(model), method="exact", **{**SIZES, **changes})


def key_of(options: CompileOptions) -> str:
    key = cache_key(options, find_checkpoint(options.model))
    assert key is not None
    return key


def test_export_starts_before_executorch_is_imported(first: tuple[Path, list[str]]) -> None:
    assert first[1] == ["False", "False", "True", "True"]


def test_a_copy_has_the_same_bytes_and_needs_no_torch(first: tuple[Path, list[str]], model: Path) -> None:
    folder, _ = first
    assert compile_apart(model, folder / "again.pte", folder) == ["True", "False", "False"]
    assert (folder / "again.pte").read_bytes() == (folder / "first.pte").read_bytes()


def test_a_copy_reports_what_the_compilation_did(kept: tuple[ProgramCache, str, CompileResult]) -> None:
    _, _, result = kept
    assert result.is_copy and result.file_bytes == result.path.stat().st_size
    assert result.manifest.batch_size == SIZES["batch_size"]
    assert [each.text.split("{")[0] for each in result.passes].count("differentiate") == 1
    assert [each.backend for each in result.delegation.delegates] == ["XnnpackBackend"]


def test_every_input_is_part_of_the_key(model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n')
    keys = [key_of(options_of(model)), key_of(options_of(model, data=(rows,)))]
    rows.write_text('{"prompt": "a", "completion": "c"}\n')
    keys.append(key_of(options_of(model, data=(rows,))))
    changes = [{"rank": 8}, {"lowering": "stock"}, {"memory": "4G"}, {"quantize": "8da4w"}, {"settings": {"soc": "x"}}]
    keys += [key_of(options_of(model, **change)) for change in changes]
    other = shutil.copytree(model, tmp_path / "llama")
    assert key_of(options_of(other)) == keys[0]
    (other / "config.json").write_text((other / "config.json").read_text() + " ")
    keys.append(key_of(options_of(other)))
    assert len(set(keys)) == len(keys)
    assert key_of(options_of(model, output=tmp_path / "elsewhere.pte")) == keys[0]


def test_what_writes_other_files_too_has_no_key(model: Path, tmp_path: Path) -> None:
    checkpoint = find_checkpoint(str(model))
    assert cache_key(options_of(model, dump_passes=tmp_path / "graphs"), checkpoint) is None
    assert cache_key(options_of(model, save_program=tmp_path / "graph.pt2"), checkpoint) is None
    assert cache_key(options_of(model, data=(Path(f"{HUB_PREFIX}glue/sst2"),)), checkpoint) is None


@pytest.mark.parametrize("damage", ["cut", "flip", "record", "gone"])
def test_a_damaged_program_is_not_copied(
    kept: tuple[ProgramCache, str, CompileResult], damage: str, tmp_path: Path
) -> None:
    cache, key, _ = kept
    program, record = cache.folder / key / "program.pte", cache.folder / key / "record.json"
    content = program.read_bytes()
    if damage == "cut":
        program.write_bytes(content[:-1])
    elif damage == "flip":
        program.write_bytes(content[:999] + bytes([content[999] ^ 1]) + content[1000:])
    elif damage == "record":
        record.write_text(record.read_text()[:-9])
    else:
        program.unlink()
    mine = tmp_path / "mine.pte"
    mine.write_text("mine")
    before = sorted(tmp_path.iterdir())
    assert cache.copy_to(key, mine) is None
    assert mine.read_text() == "mine" and sorted(tmp_path.iterdir()) == before


def test_the_oldest_make_room(kept: tuple[ProgramCache, str, CompileResult]) -> None:
    cache, key, result = kept
    limited = ProgramCache(cache.folder, int(2.5 * sum(each.num_bytes for each in cache.programs())))
    for days, digit in ((2, "a"), (1, "b")):
        limited.keep(digit * 64, result)
        then = time.time() - days * 86_400
        if (cache.folder / (digit * 64)).exists():
            os.utime(cache.folder / (digit * 64) / "record.json", (then, then))
    assert {each.folder.name for each in cache.programs()} == {key, "b" * 64}
    ProgramCache(cache.folder, 1000).keep("c" * 64, result)
    assert "c" * 64 not in {each.folder.name for each in cache.programs()}


def test_clears_by_age(kept: tuple[ProgramCache, str, CompileResult]) -> None:
    cache, _, result = kept
    (size,) = [each.num_bytes for each in cache.programs()]
    stale = cache.folder / ".new-killed"
    stale.mkdir()
    os.utime(stale, (0, 0))
    assert cache.clear(older_than_days=1) == (0, 0)
    assert not stale.exists()
    assert cache.clear() == (1, size)
    assert list(cache.folder.iterdir()) == []
    assert result.path.exists()


def _keep_and_copy(folder: Path, source: Path, key: str, results: Any) -> None:
    """Keep, copy and evict as fast as possible; report how many copies were whole."""
    cache = ProgramCache(folder)
    record = json.loads((source / key / "record.json").read_text())
    content = (source / key / "program.pte").read_bytes()
    mine = folder.parent / f"{os.getpid()}.pte"
    whole = 0
    for _ in range(25):
        mine.write_bytes(content)
        cache.keep(key, CompileResult.of_copy(record["result"], mine))
        mine.unlink()
        if cache.copy_to(key, mine) is not None:
            assert mine.read_bytes() == content
            whole += 1
        cache.clear()
    results.put(whole)


def test_two_processes_share_a_folder(kept: tuple[ProgramCache, str, CompileResult], tmp_path: Path) -> None:
    cache, key, _ = kept
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    arguments = (tmp_path / "shared", cache.folder, key, results)
    processes = [context.Process(target=_keep_and_copy, args=arguments) for _ in range(2)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(60)
    assert [each.exitcode for each in processes] == [0, 0]
    assert results.get() > 0 and results.get() > 0


def test_a_place_that_is_no_folder_keeps_nothing(kept: tuple[ProgramCache, str, CompileResult], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    _, key, result = kept
    with pytest.raises(OSError, match="file"):
        ProgramCache(tmp_path / "file" / "programs").keep(key, result)
    assert ProgramCache(tmp_path / "file" / "programs").copy_to(key, tmp_path / "x.pte") is None


@pytest.mark.parametrize(("text", "kept_bytes"), [("0", 0), ("1M", 10**6), ("", 10**10)])
def test_the_limit_comes_from_the_environment(text: str, kept_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRGEC_CACHE_LIMIT", text)
    cache = ProgramCache.of_user()
    assert cache is not None and cache.limit_bytes == kept_bytes


def test_a_limit_that_is_no_size_is_reported(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRGEC_CACHE_LIMIT", "much")
    with pytest.raises(UsageError, match="PRGEC_CACHE_LIMIT is not a size: 'much'"):
        compile_cached(replace(options_of(model), output=Path("unused.pte")))

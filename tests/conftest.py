"""Settings every test runs under, and which tests share a worker where `make test` starts several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["tests.shared", "tests.tiny_program", "tests.tiny_gradient", "tests.side_program", "tests.rotation"]

TESTS = Path(__file__).resolve().parent
# Their files share a driver that takes minutes to build, or graphs kept in memory.
ONE_WORKER = ("device", "passes")
# The longest tests begin first, so that no worker ends alone.
FIRST = ("device", "test_demo_assets.py", "e2e", "bench", "backends", "passes")


def folder_of(item: pytest.Item) -> str:
    """Folder of a test below tests/; its own name for one that is in none."""
    return item.path.relative_to(TESTS).parts[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, and of some folders, where there are workers."""
    if not config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    for item in items:
        folder = folder_of(item)
        item.add_marker(pytest.mark.xdist_group(folder if folder in ONE_WORKER else str(item.path.relative_to(TESTS))))
    items.sort(key=lambda item: FIRST.index(folder_of(item)) if folder_of(item) in FIRST else len(FIRST))


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep files about programs out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRGEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tests use small tensors: threads cost more than they give, and one thread makes reductions reproducible."""
    import torch
    from executorch.extension.pybindings import _C as bindings

    torch.set_num_threads(1)
    # This comes before any delegate uses the pool.
    bindings._unsafe_reset_threadpool(1)

"""Settings every test runs under."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.tiny_program"]


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> None:
    """Tests use small tensors: threads cost more than they give, and one thread makes reductions reproducible."""
    import torch

    torch.set_num_threads(1)

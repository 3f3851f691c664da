"""Every format trains: equal rows give equal losses, whatever they are kept in."""

from __future__ import annotations

import pytest

from tests.checks import formats


@pytest.mark.slow
def test_equal_rows_learn_equally(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("datasets")
    assert formats.main([]) == 0
    assert capsys.readouterr().out.count("equal\n") > 30

"""Files of a run folder while they are written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from prgec.core.formats.run_folder import MetricsWriter, RunFolder


def test_the_lines_of_an_earlier_process_stay_until_they_are_written_again(tmp_path: Path) -> None:
    """A reader, or a kill, at any time between finds them all."""
    path = tmp_path / "metrics.partial.jsonl"
    path.write_text('{"step": 1, "seconds": 0.5}\n{"step": 2, "seconds": 0.7}\n')
    seen = []

    def again() -> Iterator[dict[str, int]]:
        for step in (1, 2):
            seen.append(path.read_text().count("\n"))
            yield {"step": step}
        seen.append(path.read_text().count("\n"))

    metrics = MetricsWriter(RunFolder(tmp_path), again())
    assert seen == [2, 2, 2] and [each.name for each in tmp_path.iterdir()] == [path.name]
    metrics.write({"step": 3})
    metrics.commit()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]

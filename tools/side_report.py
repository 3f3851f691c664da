"""Measure side-tuning on a task and write it as a page: accuracy, bytes, times, and what shards give away.

    python tools/side_report.py -o docs/reports/side.md        # the bundled task, about 2 minutes

Any checkpoint with fixed answers does: --model, --train and --test.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.compile.compiler import CompileResult, compile_model
from prgec.compile.options import CompileOptions
from prgec.data.dataset import load_dataset
from prgec.data.first_tokens import FirstTokens, encode_dataset
from prgec.demo import data_file
from prgec.engines.executorch.emitting_program import EmittingProgram, open_emitting
from prgec.formats.side_network import NORMS
from prgec.machine.describe import describe_machine
from prgec.machine.quiet import quiet_libraries
from prgec.side.answers import Assisted, evaluate
from prgec.side.audit import Attack, attacks
from prgec.side.build import build
from prgec.side.cache import Cache, read_cache
from prgec.side.emit import EmitOptions, Emitted, emit
from prgec.side.fit import fit
from prgec.side.fit_options import FitOptions
from prgec.side.side_program import open_side

KEY = bytes(range(32))
KNOWN = 20
# Name, what differs from the defaults in emitting, and in fitting.
VARIANTS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("defaults", {}, {}),
    ("8-bit shards", {"dtype": "i8"}, {}),
    ("without norm, the paper's form", {}, {"norm": NORMS[1]}),
    ("secret head", {"y_pre": "secret"}, {}),
    ("label DP, epsilon 2", {"label_dp": 2.0}, {}),
    ("label DP, epsilon 1", {"label_dp": 1.0}, {}),
)


@dataclass(frozen=True)
class Measured:
    """What one variant came to.

    Attributes:
        name: Of the variant.
        accuracies: Of the seeds, on the test rows.
        emitted: What the device wrote.
        fit_seconds: Wall time of a fit, by seed.
        tried: What attacks recovered.
    """

    name: str
    accuracies: tuple[float, ...]
    emitted: Emitted
    fit_seconds: tuple[float, ...]
    tried: tuple[Attack, ...]


@dataclass(frozen=True)
class Bench:
    """A backbone with its rows.

    Attributes:
        program: The backbone.
        train: Rows that are emitted.
        test: Rows that are answered.
        work: Folder for everything.
        seeds: Of the fits.
    """

    program: EmittingProgram
    train: FirstTokens
    test: FirstTokens
    work: Path
    seeds: int

    def measure(self, name: str, emitting: dict[str, Any], fitting: dict[str, Any]) -> Measured:
        """Emit, fit with every seed, build, answer, and attack."""
        folder = self.work / name.replace(" ", "-").replace(",", "")
        emitted = emit(self.program, self.train, folder, KEY, EmitOptions(**emitting))
        cache = read_cache(folder)
        accuracies, seconds = [], []
        for seed in range(self.seeds):
            done = fit(cache, folder / f"side-{seed}", FitOptions(**fitting, seed=seed))
            build(done.network, folder / f"side-{seed}.pte")
            assisted = Assisted(self.program, open_side(folder / f"side-{seed}.pte"), KEY)
            found = evaluate(assisted, self.test)
            assert found is not None
            accuracies.append(found.accuracy)
            seconds.append(done.seconds)
        return Measured(name, tuple(accuracies), emitted, tuple(seconds), self._attacks(cache))

    def _attacks(self, cache: Cache) -> tuple[Attack, ...]:
        from prgec.side.row_ids import row_ids

        found = Assisted(self.program, None, b"").scores(self.train)
        assert found is not None
        place = {row.tobytes(): number for number, row in enumerate(cache.ids)}
        order = [place[row] for row in row_ids(self.train.rows, KEY)]
        acts = cache.values(_indices(order))[:, -1, 0]
        return attacks(cache.dy[order][:, 0], acts, found[0], self.train.answers, KNOWN)


def _indices(order: list[int]) -> Any:
    import numpy as np

    return np.array(order, dtype=np.int64)


def main() -> None:
    """Parse the command line, measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="checkpoint")
    parser.add_argument("--train", type=Path, default=data_file("train"), help="labelled rows to emit")
    parser.add_argument("--test", type=Path, default=data_file("test"), help="labelled rows to answer")
    parser.add_argument("--seeds", type=int, default=3, help="fits of each variant")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/reports/side.md"), help="page to write")
    said = parser.parse_args()
    quiet_libraries()
    with tempfile.TemporaryDirectory() as work:
        said.output.write_text(_page(said, Path(work)), encoding="utf-8")


def _page(said: argparse.Namespace, work: Path) -> str:
    started = time.monotonic()
    options = CompileOptions(
        model=said.model,
        output=work / "backbone.pte",
        method="side",
        data=(said.train, said.test),
        seq_len=0,
        num_labels=1,
        batch_size=8,
    )
    done = compile_model(options)
    program = open_emitting(done.path)
    rows = [encode_dataset(load_dataset(path), program.tokenizer, program.manifest) for path in (said.train, said.test)]
    bench = Bench(program, *rows, work, said.seeds)
    alone = evaluate(Assisted(program, None, b""), bench.test)
    assert alone is not None
    found = [bench.measure(*variant) for variant in VARIANTS]
    lines = _lines(said, done, bench, alone.accuracy, found)
    return "\n".join([*lines, "", f"All of it took {time.monotonic() - started:.0f} s."]) + "\n"


def _lines(
    said: argparse.Namespace, done: CompileResult, bench: Bench, alone: float, found: Sequence[Measured]
) -> list[str]:
    m = done.manifest
    return [
        "# Side-tuning, measured",
        "",
        f"`python tools/side_report.py -o docs/reports/side.md`; {_machine()}.",
        "",
        f"{m.model} ({m.architecture}), {m.num_blocks} blocks of width {m.hidden_size}, on {m.backend}: "
        f"{len(done.delegation.delegates)} delegate, {done.file_bytes / 1e6:.1f} MB. {len(bench.train.rows)} rows are",
        f"emitted once, {len(bench.test.rows)} others answered; the backbone alone answers {alone:.1%} right. "
        f"{said.seeds} seeds, defaults but for what is named.",
        "",
        "| variant | right, worst to best seed | mean | bytes sent a row | emit | fit |",
        "|---|---|---|---|---|---|",
        *(_row(each) for each in found),
        "",
        f"Labels an attacker recovers of the emitted rows; the last two know {KNOWN} of them already.",
        "",
        "| variant | " + " | ".join(each.name for each in found[0].tried) + " |",
        "|---|" + "---|" * len(found[0].tried),
        *(f"| {each.name} | " + " | ".join(f"{one.recovered:.1%}" for one in each.tried) + " |" for each in found),
    ]


def _machine() -> str:
    found = describe_machine()
    return f"{found['cpu']}, {found['cores']} cores, load {found['load_1min']}, {found['system']}"


def _row(each: Measured) -> str:
    size = each.emitted.num_bytes / each.emitted.num_rows
    low, high, mean = min(each.accuracies), max(each.accuracies), statistics.mean(each.accuracies)
    return (
        f"| {each.name} | {low:.1%} to {high:.1%} | {mean:.1%} | {size:,.0f} | {each.emitted.seconds:.1f} s | "
        f"{statistics.median(each.fit_seconds):.1f} s |"
    )


if __name__ == "__main__":
    main()

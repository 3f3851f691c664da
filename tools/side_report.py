"""Measure side-tuning on a task and write it as a page: accuracy, bytes, times, and what shards give away.

    python tools/side_report.py -o docs/reports/side.md        # the bundled task, about 5 minutes

Any checkpoint with fixed answers does: --model, --train and --test; what else learns the task is measured on the
bundled one alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from side.ablation import without_additive, without_selector
from side.paper import link_times, operations, traffic
from side.rivals import memory, rivals

from prgec.compiler.compile import compile_model
from prgec.compiler.options import CompileOptions
from prgec.compiler.result import CompileResult
from prgec.core.data.dataset import load_dataset
from prgec.core.data.first_tokens import FirstTokens, encode_dataset
from prgec.core.formats.side_network import NORMS
from prgec.core.machine.describe import describe_machine
from prgec.core.machine.quiet import quiet_libraries
from prgec.demo import data_file
from prgec.runtime.engines.executorch.emitting_program import EmittingProgram, open_emitting
from prgec.serve.side.answers import Assisted, evaluate
from prgec.serve.side.audit import Attack, attacks
from prgec.serve.side.build import build
from prgec.serve.side.cache import Cache, read_cache
from prgec.serve.side.emit import EmitOptions, Emitted, emit
from prgec.serve.side.fit import fit
from prgec.serve.side.fit_options import FitOptions
from prgec.serve.side.row_ids import row_ids
from prgec.serve.side.side_program import open_side

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
    """The result of one variant.

    Attributes:
        name: Name of the variant.
        accuracies: Accuracy of each seed on the test rows.
        emitted: Files that the device wrote.
        fit_seconds: Wall time of a fit, by seed.
        tried: Results of the attacks.
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
        seeds: Seeds of the fits.
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
            assert found.accuracy is not None
            accuracies.append(found.accuracy)
            seconds.append(done.seconds)
        return Measured(name, tuple(accuracies), emitted, tuple(seconds), self._attacks(cache))

    def order(self, cache: Cache) -> list[int]:
        """Place in a cache of each row of `train`."""
        place = {row.tobytes(): number for number, row in enumerate(cache.ids)}
        return [place[row] for row in row_ids(self.train.rows, KEY)]

    def ablation(self, found: Sequence[Measured]) -> list[str]:
        """Table 4's rows, beside what the defaults came to."""
        cache = read_cache(self.work / found[0].name)
        plain = without_additive(self.alone, self.train, self.test, cache, self.order(cache), self.seeds, self.work)
        shape, sent = cache.shape, found[0].emitted.num_bytes / found[0].emitted.num_rows
        whole = without_selector(self.train, shape.num_blocks, shape.width)
        mean, passes = statistics.mean(found[0].accuracies), FitOptions.epochs
        return [
            "| | right, mean | bytes sent a row | forwards a row |",
            "|---|---|---|---|",
            f"| all of it | {mean:.1%} | {sent:,.0f} | 1 |",
            f"| without the additive network: the server has labels | {statistics.mean(plain):.1%} | {sent:,.0f} | 1 |",
            f"| without the token selector | {mean:.1%} (by construction) | {whole:,.0f} | 1 |",
            f"| without the server's cache | {mean:.1%} (by construction) | {passes * sent:,.0f} | {passes} |",
        ]

    @property
    def alone(self) -> Assisted:
        """The backbone without a network."""
        return Assisted(self.program, None, b"")

    def _attacks(self, cache: Cache) -> tuple[Attack, ...]:
        found = self.alone.scores(self.train)
        assert found is not None
        order = self.order(cache)
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
    parser.add_argument("--mbps", type=float, default=60.0, help="speed of the link, the paper's by default")
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
    train, test = (
        encode_dataset(load_dataset(path), program.tokenizer, program.manifest) for path in (said.train, said.test)
    )
    bench = Bench(program, train, test, work, said.seeds)
    alone = evaluate(bench.alone, bench.test)
    assert alone is not None and alone.accuracy is not None
    found = [bench.measure(*variant) for variant in VARIANTS]
    lines = _lines(said, done, bench, alone.accuracy, found)
    seconds = found[0].emitted.seconds * options.batch_size / found[0].emitted.num_rows
    lines += ["", "## Table 4 on this task", "", *bench.ablation(found)]
    if said.model == "demo":
        lines += ["", "## What else learns the task from these rows", "", *_rival_lines(work, found[0])]
    lines += ["", "## Memory on the device", "", *_memory_lines(done, options, work)]
    lines += ["", "## The paper's Table 1, from shapes", "", *traffic()]
    lines += ["", "## Its Table 2, by torch's counter of operations", "", *operations()]
    lines += ["", "## Its Table 3, what a link takes", "", *link_times(said.mbps, seconds)]
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


def _rival_lines(work: Path, side: Measured) -> list[str]:
    rows = side.emitted.num_rows
    lines = ["| method | right | rows of forward passes on the device | training |", "|---|---|---|---|"]
    lines.append(
        f"| side | {statistics.mean(side.accuracies):.1%} | {rows:,} | {side.emitted.seconds:.1f} s and the fit |"
    )
    lines += [f"| {each.name} | {each.accuracy:.1%} | {each.rows:,} | {each.seconds:.1f} s |" for each in rivals(work)]
    return lines


def _memory_lines(done: CompileResult, options: CompileOptions, work: Path) -> list[str]:
    fitted = replace(options, seq_len=done.manifest.seq_len)
    emits, answers, idle = memory(fitted, work)
    mega = 1e6
    return [
        f"Peaks of a process that runs 40 calls of {options.batch_size} rows of {fitted.seq_len} tokens, of one that "
        "runs the same graph without",
        "activations, and of one that opens it and runs nothing, in MB.",
        "",
        "| | emit | answer alone | ratio | nothing | ratio above nothing |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {e / mega:.1f} | {a / mega:.1f} | {e / a:.3f} | {i / mega:.1f} | {(e - i) / (a - i):.3f} |"
            for name, e, a, i in (
                ("resident", emits.rss_bytes, answers.rss_bytes, idle.rss_bytes),
                ("anonymous", emits.anon_bytes, answers.anon_bytes, idle.anon_bytes),
            )
        ),
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

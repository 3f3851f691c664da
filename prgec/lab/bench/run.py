"""Runs a benchmark: for every cell build the programs, time them interleaved, and measure their memory one by one."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prgec.compiler.frontend.checkpoint import Checkpoint, find_checkpoint
from prgec.compiler.plan.source import count_weights
from prgec.core.machine.describe import describe_machine
from prgec.core.machine.memory import available_memory_bytes
from prgec.errors import UsageError
from prgec.lab.bench.against_plan import planned_anon_bytes
from prgec.lab.bench.build import Built, backend_of, build_all
from prgec.lab.bench.job import Job
from prgec.lab.bench.memory import Peak, measure
from prgec.lab.bench.options import BenchOptions, Cell
from prgec.lab.bench.result import BenchResult, CellResult, Row, compare
from prgec.lab.bench.steps import make_step
from prgec.lab.bench.timing import interleave, median_s
from prgec.lab.bench.variants import Variant

PROGRAMS = "programs"
Progress = Callable[[str], None]


def run_bench(options: BenchOptions, progress: Progress = lambda text: None) -> BenchResult:
    """Measure every variant in every cell.

    Args:
        options: Options of the benchmark.
        progress: Called with one line as each part begins.

    Raises:
        PrgecError: One of its subclasses; programs finished before stay in the folder and are not built again.
    """
    options.check()
    checkpoint = find_checkpoint(options.model)
    _check_positions(options, checkpoint)
    machine = describe_machine()
    with _programs_folder(options.out) as folder:
        bench = _Bench(options, checkpoint, folder, progress)
        cells = tuple(bench.run(cell) for cell in options.cells())
    return BenchResult(
        cells,
        {**machine, "model": checkpoint.name, "num_layers": _config(checkpoint, _DEPTH, 0), "repeats": options.repeats},
    )


# Configurations of other families say the same under other names.
_DEPTH = ("num_hidden_layers", "n_layer")
_VOCAB = ("vocab_size",)
_POSITIONS = ("max_position_embeddings", "n_positions")
_SMALLEST_VOCAB = 256
# PyTorch computes in f32 whatever the checkpoint holds.
_F32_BYTES = 4


@dataclass(frozen=True)
class _Bench:
    """The state that all cells share."""

    options: BenchOptions
    checkpoint: Checkpoint
    folder: Path
    progress: Progress

    def run(self, cell: Cell) -> CellResult:
        variants = self.options.chosen_variants()
        built = self._build([each for each in variants if not each.is_eager], cell)
        jobs = {each.name: self._job(each, cell, built) for each in variants}
        self._check_memory(jobs, built)
        seconds = self._time(cell, jobs)
        rows = []
        for name, job in jobs.items():
            self.progress(f"{cell}: memory of {name}")
            rows.append(self._row(job, built.get(name), seconds[name], measure(job)))
        return CellResult(cell, tuple(rows), compare(cell, seconds))

    def _build(self, variants: Sequence[Variant], cell: Cell) -> Mapping[str, Built]:
        if variants:
            self.progress(f"{cell}: building {', '.join(each.name for each in variants)}")
        return build_all(variants, cell, self.options, self.folder)

    def _job(self, variant: Variant, cell: Cell, built: Mapping[str, Built]) -> Job:
        program = built[variant.name].path if variant.name in built else None
        num_labels = self.options.compile_options(cell, self.folder / "model.pte").num_labels
        vocab_size = _config(self.checkpoint, _VOCAB, _SMALLEST_VOCAB)
        return Job(
            variant=variant,
            cell=cell,
            backend=backend_of(variant, self.options),
            model=self.options.model,
            vocab_size=vocab_size,
            num_labels=num_labels,
            layers=self.options.layers,
            program=program,
        )

    def _check_memory(self, jobs: Mapping[str, Job], built: Mapping[str, Built]) -> None:
        """Refuse what would end in the kernel killing some process: delegates unpack all weights on loading."""
        eager_bytes = _F32_BYTES * count_weights(self.checkpoint.shards)
        needed = sum(built[name].file_bytes if name in built else eager_bytes for name in jobs)
        available = available_memory_bytes()
        if needed > available:
            raise UsageError(
                f"the variants need about {needed / 1e9:.1f} GB together; {available / 1e9:.1f} are free",
                hint="measure two at a time, with the same --out",
            )

    def _time(self, cell: Cell, jobs: Mapping[str, Job]) -> dict[str, dict[int, float]]:
        self.progress(f"{cell}: timing {', '.join(jobs)}")
        steps = {name: make_step(job) for name, job in jobs.items()}
        reducible = [name for name, job in jobs.items() if job.variant.is_eager]
        seconds = interleave(steps, self.options.repeats, reducible)
        del steps
        gc.collect()
        for name in reducible:
            if len(seconds[name]) < self.options.repeats:
                self.progress(f"{cell}: {name} is slow and took part in {len(seconds[name])} rounds only")
        return seconds

    def _row(self, job: Job, built: Built | None, seconds: Mapping[int, float], peak: Peak) -> Row:
        cell = job.cell
        return Row(
            variant=job.variant.name,
            backend=job.backend if built else "torch",
            quantize=cell.quantize if built else "none",
            q=cell.q,
            B=cell.batch_size,
            T=cell.seq_len,
            layers=",".join(self.options.layers),
            step_s=median_s(seconds),
            peak_anon_bytes=peak.anon_bytes,
            peak_rss_bytes=peak.rss_bytes,
            planned_anon_bytes=planned_anon_bytes(job.variant, cell, self.options.layers, self.checkpoint, job.backend),
            file_bytes=built.file_bytes if built else sum(each.stat().st_size for each in self.checkpoint.shards),
            compile_s=built.compile_s if built else 0.0,
            delegates=built.delegates if built else 0,
        )


def _check_positions(options: BenchOptions, checkpoint: Checkpoint) -> None:
    longest = _config(checkpoint, _POSITIONS, 0)
    for cell in options.cells():
        if 0 < longest < cell.seq_len:
            raise UsageError(f"--seq-len is {cell.seq_len}; {checkpoint.name} supports {longest} positions")


@contextmanager
def _programs_folder(out: Path | None) -> Iterator[Path]:
    if out is None:
        with tempfile.TemporaryDirectory(prefix="prgec-bench-") as scratch:
            yield Path(scratch)
        return
    folder = out / PROGRAMS
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _config(checkpoint: Checkpoint, names: tuple[str, ...], default: int) -> int:
    """A number of the model's configuration; multimodal ones keep those of the language model one level down."""
    nested: dict[str, Any] = checkpoint.config.get("text_config", {})
    found = [source[name] for source in (checkpoint.config, nested) for name in names if name in source]
    return int(found[0]) if found else default

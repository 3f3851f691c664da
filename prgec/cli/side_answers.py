"""`prgec eval` and `prgec predict` with a backbone and the network beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prgec.cli.interrupt import end_on_terminate
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines
from prgec.core.data.task import MATTHEWS, Item
from prgec.errors import UsageError

if TYPE_CHECKING:
    from prgec.serve.side.answers import Assisted, SideEvaluation

_SHOWN_PROMPT = 60
_MEASURES = ("accuracy", "matthews", "pearson", "spearman")


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The files of a program, and of the network or adapter beside it, on a command line.

    Attributes:
        program: The .pte.
        side: Path of the network; None without one.
        key: File of the device's key; None for its usual place.
        adapter: Value of --adapter.
        verify: Whether to compare programs with their checksums.
    """

    program: Path
    side: Path | None
    key: Path | None
    adapter: Path | None
    verify: bool

    def is_meant(self) -> bool:
        """Whether there is a network, or the program is of --method side; found without loading a method.

        Raises:
            ProgramError: If it is not a program.
        """
        from prgec.runtime.engines.executorch.runtime import manifest_of

        return self.side is not None or manifest_of(self.program, verify=self.verify).emits

    def open(self) -> Assisted:
        """Open both.

        Raises:
            PrgecError: If one of them cannot be used.
        """
        from prgec.serve.side.answers import open_assisted

        if self.adapter is not None:
            raise UsageError("--adapter is for programs that train; one of --method side takes --side")
        return open_assisted(self.program, self.side, self.key, verify=self.verify)


def evaluate_side(beside: Beside, data: Path, task: str, as_json: bool) -> int:
    """Measure a backbone on labelled rows, with its network or without."""
    from prgec.core.data.dataset import load_dataset
    from prgec.core.data.first_tokens import encode_dataset
    from prgec.serve.side.answers import evaluate

    dataset = load_dataset(data, task)
    assisted = beside.open()
    encoded = encode_dataset(dataset, assisted.program.tokenizer, assisted.program.manifest)
    with end_on_terminate(), RunDisplay(steps=0) as display:
        display.on_data(dataset)
        result = evaluate(assisted, encoded, display.on_eval_batch)
    if as_json:
        print_json(
            {
                "loss": result.loss,
                **{name: getattr(result, name) for name in _MEASURES},
                "seconds": round(result.seconds, 3),
                "num_examples": result.num_examples,
                "task": dataset.task.name,
                "side_sha256": assisted.side.description.sha256 if assisted.side else None,
            }
        )
    else:
        print_lines(
            *_measured(result, dataset.task.metric),
            f"loss      {result.loss:.4f} (mean squared error)",
            f"examples  {result.num_examples} ({dataset.task.name}), {result.seconds:.1f} s",
        )
    return 0


def predict_side(beside: Beside, items: Sequence[Item], candidates: Sequence[str], task: str, as_json: bool) -> int:
    """Choose an answer for each row by the scores of both."""
    from prgec.core.data.first_tokens import encode_first_tokens

    assisted = beside.open()
    backbone = assisted.program
    encoded = encode_first_tokens(items, candidates, backbone.tokenizer, backbone.manifest)
    with end_on_terminate(), RunDisplay(steps=0) as display:
        found = assisted.scores(encoded, display.on_eval_batch)
    rows: list[dict[str, object]] = []
    for prompt, scores in zip(encoded.prompts, found[1].tolist(), strict=True):
        by_choice: dict[str, float] = dict(zip(encoded.choices, scores, strict=True))
        best = max(by_choice, key=by_choice.__getitem__) if len(scores) > 1 else f"{scores[0]:.3f}"
        rows.append({"prompt": prompt, "completion": best, "scores": by_choice})
    if as_json:
        print_json({"task": task, "candidates": list(encoded.choices), "predictions": rows})
    else:
        print_lines(*map(_line, rows))
    return 0


def _measured(result: SideEvaluation, metric: str) -> list[str]:
    """Lines of what was measured; Matthews correlation where the task is measured by it."""
    if result.accuracy is None:
        return [f"pearson   {result.pearson:.4f}", f"spearman  {result.spearman:.4f}"]
    shown = [f"matthews  {result.matthews:.4f}"] if metric == MATTHEWS else []
    return [*shown, f"accuracy  {result.accuracy:.1%}"]


def _line(row: dict[str, object]) -> str:
    prompt = " ".join(str(row["prompt"]).split())
    shown = prompt if len(prompt) <= _SHOWN_PROMPT else "..." + prompt[-_SHOWN_PROMPT:]
    by_choice = row["scores"]
    assert isinstance(by_choice, dict)
    scores = "  ".join(f"{text.strip()} {score:.3f}" for text, score in by_choice.items())
    return f"{str(row['completion']).strip()}\t{shown}\t({scores})"

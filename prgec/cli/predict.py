"""`prgec predict`: choose the most likely answer for rows of a file or for texts on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines
from prgec.data.tasks import AUTO_TASK, TASKS, Example, Task, find_task, load_dataset
from prgec.errors import UsageError

if TYPE_CHECKING:
    from prgec.driver.predict import Prediction

FILE = click.Path(path_type=Path)
_SHOWN_PROMPT = 60


@click.command()
@click.argument("program", type=FILE)
@click.option("--data", type=FILE, help="Rows (jsonl); labels are not needed.")
@click.option("--text", "texts", multiple=True, help="A text; repeat for more.")
@click.option("--task", type=click.Choice([AUTO_TASK, *TASKS]), default=AUTO_TASK, show_default=True,
              help="How texts become prompts; auto looks at the first row, and for --text means completion where "
              "--candidate is given, else sst2.")  # fmt: skip
@click.option("--candidate", "candidates", multiple=True,
              help="An answer to choose from, leading space included; repeat [default: the task's].")  # fmt: skip
@click.option("--adapter", type=FILE, help="adapter.safetensors of a run; the untrained program without it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def predict(program: Path, data: Path | None, texts: tuple[str, ...], task: str, candidates: tuple[str, ...],
            adapter: Path | None, as_json: bool) -> int:  # fmt: skip
    """Choose the most likely of some answers for each row or text, with PROGRAM (a .pte)."""
    found, examples = _examples(data, texts, task, bool(candidates))
    from prgec.driver.adapter import load_adapter
    from prgec.driver.predict import predict as choose
    from prgec.driver.program import Program

    loaded = Program.open(program)
    if adapter is not None:
        load_adapter(adapter, loaded)
    choices = candidates or found.candidates
    with stop_on_interrupt("stopping") as should_stop, RunDisplay(steps=0) as display:
        predictions = choose(loaded, examples, choices, display.on_eval_batch, should_stop)
        if should_stop():
            raise KeyboardInterrupt
    if as_json:
        print_json({"task": found.name, "candidates": list(choices), "state_sha256": loaded.state_sha256(),
                    "predictions": [vars(each) for each in predictions]})  # fmt: skip
    else:
        print_lines(*map(_line, predictions))
    return 0


def _examples(data: Path | None, texts: tuple[str, ...], task: str, has_candidates: bool) -> tuple[Task, list[Example]]:
    if (data is None) == (not texts):
        raise UsageError("predict needs either --data or --text")
    if data is not None:
        dataset = load_dataset(data, task, labelled=False)
        return dataset.task, list(dataset.examples)
    name = ("completion" if has_candidates else "sst2") if task == AUTO_TASK else task
    found = find_task(name)
    return found, [Example(found.prompt(text), None, f"--text {number}") for number, text in enumerate(texts, start=1)]


def _line(prediction: Prediction) -> str:
    prompt = " ".join(prediction.prompt.split())
    shown = prompt if len(prompt) <= _SHOWN_PROMPT else "..." + prompt[-_SHOWN_PROMPT:]
    losses = "  ".join(f"{text.strip()} {loss:.3f}" for text, loss in prediction.losses.items())
    return f"{prediction.completion.strip()}\t{shown}\t({losses})"

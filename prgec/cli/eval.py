"""`prgec eval`: loss and accuracy of a program, with or without an adapter."""

from __future__ import annotations

from pathlib import Path

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines
from prgec.data.tasks import AUTO_TASK, TASKS, load_dataset

FILE = click.Path(path_type=Path)


@click.command("eval")
@click.argument("program", type=FILE)
@click.option("--data", type=FILE, required=True, help="Labelled rows (jsonl).")
@click.option("--task", type=click.Choice([AUTO_TASK, *TASKS]), default=AUTO_TASK, show_default=True,
              help="How fields become prompts; auto looks at the first row.")  # fmt: skip
@click.option("--adapter", type=FILE, help="adapter.safetensors of a run; the untrained program without it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def eval_command(program: Path, data: Path, task: str, adapter: Path | None, as_json: bool) -> int:
    """Measure loss and accuracy of PROGRAM on a jsonl file."""
    from prgec.driver.adapter import load_adapter
    from prgec.driver.evaluate import encode_eval_set, evaluate
    from prgec.driver.program import Program

    dataset = load_dataset(data, task)
    loaded = Program.open(program)
    if adapter is not None:
        load_adapter(adapter, loaded)
    eval_set = encode_eval_set(dataset, loaded)
    with stop_on_interrupt("stopping") as should_stop, RunDisplay(steps=0) as display:
        result = evaluate(loaded, eval_set, display.on_eval_batch, should_stop)
    if result is None:
        raise KeyboardInterrupt
    accuracy = "none (open-ended task)" if result.accuracy is None else f"{result.accuracy:.1%}"
    if as_json:
        print_json({"steps": result.num_calls, "loss": result.loss, "accuracy": result.accuracy,
                    "seconds": round(result.seconds, 3), "state_sha256": loaded.state_sha256(),
                    "num_examples": result.num_examples, "task": dataset.task.name})  # fmt: skip
    else:
        print_lines(f"accuracy  {accuracy}", f"loss      {result.loss:.4f}",
                    f"examples  {result.num_examples} ({dataset.task.name}), {result.seconds:.1f} s")  # fmt: skip
    return 0

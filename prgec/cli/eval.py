"""`prgec eval`: loss and accuracy of a program, with or without an adapter."""

from __future__ import annotations

from pathlib import Path

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines
from prgec.cli.task_option import TASK
from prgec.cli.verify_option import NO_VERIFY
from prgec.data.tasks import AUTO_TASK, TASK_HELP

FILE = click.Path(path_type=Path)


@click.command("eval")
@click.argument("program", type=FILE)
@click.option("--data", type=FILE, required=True, help="Labelled rows.")
@click.option("--task", type=TASK, default=AUTO_TASK, show_default=True, help=TASK_HELP)
@click.option(
    "--adapter", type=FILE, help="adapter.safetensors of a run, or a PEFT folder; the untrained program without it."
)
@NO_VERIFY
@click.option("--side", type=FILE, help="The network beside a program of --method side (prgec side build).")
@click.option("--key", type=FILE, help="The device's key, for networks beside a secret head.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def eval_command(
    program: Path,
    data: Path,
    task: str,
    adapter: Path | None,
    no_verify: bool,
    side: Path | None,
    key: Path | None,
    as_json: bool,
) -> int:
    """Measure loss and accuracy of PROGRAM on a data file."""
    from prgec.cli.side_answers import Beside, evaluate_side

    beside = Beside(program, side, key, adapter, verify=not no_verify)
    if beside.is_meant():
        return evaluate_side(beside, data, task, as_json)
    from prgec.data.dataset import load_dataset
    from prgec.data.eval_set import encode_eval_set
    from prgec.runs.open import open_with_adapter
    from prgec.training.evaluate import evaluate

    dataset = load_dataset(data, task)
    loaded = open_with_adapter(program, adapter, verify=not no_verify)
    eval_set = encode_eval_set(dataset, loaded)
    with stop_on_interrupt("stopping") as should_stop, RunDisplay(steps=0) as display:
        display.on_data(dataset)
        result = evaluate(loaded, eval_set, display.on_eval_batch, should_stop)
    if result is None:
        raise KeyboardInterrupt
    accuracy = "none (open-ended task)" if result.accuracy is None else f"{result.accuracy:.1%}"
    if as_json:
        print_json(
            {
                "steps": result.num_calls,
                "loss": result.loss,
                "accuracy": result.accuracy,
                "seconds": round(result.seconds, 3),
                "state_sha256": loaded.state_sha256(),
                "num_examples": result.num_examples,
                "task": dataset.task.name,
                "f1": result.f1,
                "exact_match": result.exact_match,
                "rouge": vars(result.rouge) if result.rouge else None,
            }
        )
    else:
        if result.f1 is not None:
            print_lines(f"F1        {result.f1:.1%}, exact match {result.exact_match:.1%}")
        if result.rouge is not None:
            r = result.rouge
            print_lines(f"ROUGE     1 {r.rouge1:.1%}, 2 {r.rouge2:.1%}, L {r.rouge_l:.1%}")
        print_lines(
            f"accuracy  {accuracy}",
            f"loss      {result.loss:.4f}",
            f"examples  {result.num_examples} ({dataset.task.name}), {result.seconds:.1f} s",
        )
    return 0

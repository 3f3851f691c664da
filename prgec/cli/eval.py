"""`prgec eval`: loss and accuracy of a program, without an adapter, with one, or with several in turn."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from prgec.cli.adapters_option import ADAPTERS, take_turns
from prgec.cli.interrupt import end_on_terminate
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines
from prgec.cli.task_option import COLUMNS, NO_EOS, TASK
from prgec.cli.verify_option import NO_VERIFY
from prgec.core.data.tasks import AUTO_TASK, TASK_HELP
from prgec.errors import UsageError

if TYPE_CHECKING:
    from prgec.core.contract.engine import Engine
    from prgec.core.contract.listener import CallListener
    from prgec.core.data.dataset import Dataset
    from prgec.runtime.training.evaluate import Evaluation

    Measure: TypeAlias = Callable[[CallListener], Evaluation]

FILE = click.Path(path_type=Path)


@click.command("eval")
@click.argument("program", type=FILE)
@click.option("--data", type=FILE, required=True, help="Labelled rows.")
@click.option("--task", type=TASK, default=AUTO_TASK, show_default=True, help=TASK_HELP)
@COLUMNS
@NO_EOS
@click.option(
    "--reward",
    "rewards",
    multiple=True,
    metavar="REWARD",
    help="Instead, the mean reward of the most likely answers to the rows' prompts, as in prgec run --reward.",
)
@click.option(
    "--max-new-tokens", type=int, default=0, metavar="N", help="Most tokens of such an answer [the program's K]."
)
@ADAPTERS
@NO_VERIFY
@click.option("--side", type=FILE, help="The network beside a program of --method side (prgec side build).")
@click.option("--key", type=FILE, help="The device's key, for networks beside a secret head.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def eval_command(
    program: Path,
    data: Path,
    task: str,
    columns: tuple[str, ...],
    no_eos: bool,
    rewards: tuple[str, ...],
    max_new_tokens: int,
    adapters: tuple[Path, ...],
    no_verify: bool,
    side: Path | None,
    key: Path | None,
    as_json: bool,
) -> int:
    """Measure loss and accuracy of PROGRAM on a data file, or its rewards."""
    from prgec.cli.side_answers import Beside, evaluate_side

    beside = Beside(program=program, side=side, key=key, adapter=next(iter(adapters), None), verify=not no_verify)
    if beside.is_meant():
        return evaluate_side(beside, data, task, as_json)
    from prgec.core.data.dataset import load_dataset
    from prgec.runtime.runs.open import open_with_adapter

    if not rewards and max_new_tokens:
        raise UsageError("--max-new-tokens is of answers that are judged", hint="add --reward")
    if rewards and (task != AUTO_TASK or no_eos):
        raise UsageError("--reward reads prompts of any format", hint="leave out --task and --no-eos")
    dataset = None if rewards else load_dataset(data, task, no_eos=no_eos, columns=columns)
    loaded = open_with_adapter(program, None, verify=not no_verify)
    documents: list[dict[str, Any]] = []
    with end_on_terminate(), RunDisplay(steps=0) as display:
        for adapter, swap_ms in take_turns(loaded, adapters):
            if not documents:
                name, measure = (
                    _rewarded(loaded, data, columns, rewards, max_new_tokens, program)
                    if dataset is None
                    else _labelled(loaded, dataset, display)
                )
            result = measure(display.on_eval_batch)
            document = _document(result, loaded.state_sha256(), name)
            if len(adapters) > 1:
                document = {"adapter": str(adapter), "swap_ms": round(swap_ms, 3), **document}
            documents.append(document)
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"adapters": documents})
    else:
        print_lines(*(line for document in documents for line in _lines(document)))
    return 0


def _labelled(loaded: Engine, dataset: Dataset, display: RunDisplay) -> tuple[str, Measure]:
    """Return the name of the rows' task, and what measures the program on them."""
    from prgec.core.data.eval_set import encode_eval_set
    from prgec.runtime.training.evaluate import evaluate

    eval_set = encode_eval_set(dataset, loaded)
    display.on_data(dataset)
    return dataset.task.name, functools.partial(evaluate, loaded, eval_set)


def _rewarded(
    loaded: Engine, data: Path, columns: tuple[str, ...], rewards: tuple[str, ...], max_new_tokens: int, program: Path
) -> tuple[str, Measure]:
    """Return the names of the rewards, and what measures the program by them."""
    from prgec.runtime.runs.open_rewards import evaluate_rewards

    return " + ".join(rewards), evaluate_rewards(
        loaded, data, columns, rewards, max_new_tokens=max_new_tokens, where=program
    )


def _document(result: Evaluation, state_sha256: str, task: str) -> dict[str, Any]:
    return {
        "steps": result.num_calls,
        **({"loss": result.loss, "accuracy": result.accuracy} if result.reward is None else {"reward": result.reward}),
        "seconds": round(result.seconds, 3),
        "state_sha256": state_sha256,
        "num_examples": result.num_examples,
        "task": task,
        "f1": result.f1,
        "exact_match": result.exact_match,
        "rouge": vars(result.rouge) if result.rouge else None,
    }


def _lines(document: dict[str, Any]) -> list[str]:
    lines = []
    if "adapter" in document:
        lines.append(f"adapter   {document['adapter']}, put in within {document['swap_ms']:.1f} ms")
    if document["f1"] is not None:
        lines.append(f"F1        {document['f1']:.1%}, exact match {document['exact_match']:.1%}")
    if document["rouge"] is not None:
        r = document["rouge"]
        lines.append(f"ROUGE     1 {r['rouge1']:.1%}, 2 {r['rouge2']:.1%}, L {r['rouge_l']:.1%}")
    if "reward" in document:
        lines.append(f"reward    {document['reward']:.4f}")
    else:
        accuracy = document["accuracy"]
        lines.append(f"accuracy  {'none (open-ended task)' if accuracy is None else f'{accuracy:.1%}'}")
        lines.append(f"loss      {document['loss']:.4f}")
    return [*lines, f"examples  {document['num_examples']} ({document['task']}), {document['seconds']:.1f} s"]

"""`prgec predict`: answers for rows of a file or for texts on the command line, chosen or written."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prgec.cli.adapters_option import ADAPTERS, take_turns
from prgec.cli.interrupt import end_on_terminate
from prgec.cli.progress import RunDisplay
from prgec.cli.render import print_json, print_lines
from prgec.cli.task_option import COLUMNS, TASK
from prgec.cli.verify_option import NO_VERIFY
from prgec.core.data.formats import CompletionFormat, LabelFormat
from prgec.core.data.task import Example, Item, Task, TemplateTask, example_of
from prgec.core.data.tasks import AUTO_TASK, TASK_HELP, find_task
from prgec.core.formats.run_folder import task_of
from prgec.errors import DataError, UsageError

if TYPE_CHECKING:
    from prgec.core.contract.engine import GeneratingProgram
    from prgec.core.data.dataset import Dataset
    from prgec.runtime.training.predict import Prediction

FILE = click.Path(path_type=Path)
_SHOWN_PROMPT = 60


@click.command()
@click.argument("program", type=FILE)
@click.argument("more_texts", nargs=-1, metavar="[TEXT]...")
@click.option("--data", type=FILE, help="Rows; labels are not needed.")
@click.option("--text", "texts", multiple=True, help="A text; repeat for more.")
@click.option(
    "--task",
    type=TASK,
    default=AUTO_TASK,
    show_default=True,
    help=TASK_HELP + " For texts, auto is the task that the adapter's run learnt; completion with --candidate or "
    "--generate.",
)
@COLUMNS
@click.option(
    "--candidate",
    "candidates",
    multiple=True,
    help="An answer to choose from, leading space included; repeat [default: the task's].",
)
@click.option(
    "--generate",
    "max_tokens",
    type=int,
    metavar="N",
    help="Write an answer of at most N tokens instead of "
    "choosing one (programs compiled with --generate; one forward a token).",
)
@ADAPTERS
@NO_VERIFY
@click.option("--side", type=FILE, help="The network beside a program of --method side (prgec side build).")
@click.option("--key", type=FILE, help="The device's key, for networks beside a secret head.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def predict(
    program: Path,
    more_texts: tuple[str, ...],
    data: Path | None,
    texts: tuple[str, ...],
    task: str,
    columns: tuple[str, ...],
    candidates: tuple[str, ...],
    max_tokens: int | None,
    adapters: tuple[Path, ...],
    no_verify: bool,
    side: Path | None,
    key: Path | None,
    as_json: bool,
) -> int:
    """Choose the most likely of some answers for each row or text, or write one, with PROGRAM (a .pte)."""
    is_free = bool(candidates) or max_tokens is not None
    learnt = task_of(adapters[0]) if adapters and not is_free else ""
    found, items = _items(data, (*texts, *more_texts), task, columns, learnt, is_free=is_free)
    from prgec.cli.side_answers import Beside, predict_side

    beside = Beside(program=program, side=side, key=key, adapter=next(iter(adapters), None), verify=not no_verify)
    if beside.is_meant():
        if max_tokens is not None:
            raise UsageError("--generate and --side exclude each other: a side network chooses between answers")
        return predict_side(beside, items, candidates or found.candidates, found.name, as_json)
    from prgec.runtime.runs.open import open_with_adapter

    loaded = open_with_adapter(program, None, verify=not no_verify)
    choices = candidates or found.candidates or loaded.manifest.answers
    answers: list[dict[str, Any]] = []
    shown: list[str] = []
    with end_on_terminate(), RunDisplay(steps=0) as display:
        for adapter, swap_ms in take_turns(loaded, adapters):
            if max_tokens is not None:
                rows, lines = _write(loaded, items, max_tokens, display)
            else:
                rows, lines = _choose(loaded, items, choices, display)
            answer: dict[str, Any] = {"state_sha256": loaded.state_sha256(), "predictions": rows}
            if len(adapters) > 1:
                answer = {"adapter": str(adapter), "swap_ms": round(swap_ms, 3), **answer}
                shown.append(f"adapter {adapter}, put in within {swap_ms:.1f} ms")
            answers.append(answer)
            shown += lines
    if as_json:
        said = answers[0] if len(answers) == 1 else {"adapters": answers}
        print_json({"task": found.name, "candidates": list(choices), **said})
    else:
        print_lines(*shown)
    return 0


def _choose(
    program: GeneratingProgram, items: list[Item], choices: tuple[str, ...], display: RunDisplay
) -> tuple[list[dict[str, Any]], list[str]]:
    from prgec.runtime.training.predict import predict as choose

    examples = [item for item in items if isinstance(item, Example)]
    if len(examples) < len(items):
        raise UsageError("conversations and plain text have no candidates to choose from", hint="use --generate N")
    predictions = choose(program, examples, choices, display.on_eval_batch)
    return [vars(each) for each in predictions], [_line(each) for each in predictions]


def _write(
    program: GeneratingProgram, items: list[Item], max_tokens: int, display: RunDisplay
) -> tuple[list[dict[str, Any]], list[str]]:
    from prgec.core.data.encode import prompt_ids
    from prgec.runtime.training.generate import generate

    prompts = [prompt_ids(item, program.tokenizer) for item in items]
    answers = generate(program, prompts, max_tokens=max_tokens, on_call=display.on_eval_batch)
    shown = [program.tokenizer.decode(ids) for ids in prompts]
    rows = [{"prompt": prompt, "completion": answer} for prompt, answer in zip(shown, answers, strict=True)]
    return rows, [row["completion"] for row in rows]


def _items(
    data: Path | None, texts: tuple[str, ...], task: str, columns: tuple[str, ...], learnt: str, *, is_free: bool
) -> tuple[Task, list[Item]]:
    if (data is None) == (not texts):
        raise UsageError("predict needs either --data or a text")
    if data is not None:
        dataset = _read(data, task, columns, learnt)
        return dataset.task, list(dataset.examples)
    name = task if task != AUTO_TASK else "completion" if is_free else learnt
    if not name:
        raise UsageError(
            "a text alone does not say how it becomes a prompt",
            hint="name the --task, the run folder as --adapter, or what to choose from with --candidate",
        )
    found = find_task(name)
    if not isinstance(found, TemplateTask | CompletionFormat | LabelFormat) or len(found.fields) > 1:
        raise UsageError(
            f"task {found.name} reads {', '.join(found.fields)}: a --text is not enough", hint="give rows with --data"
        )
    return found, [example_of(found, text, f"--text {n}") for n, text in enumerate(texts, start=1)]


def _read(data: Path, task: str, columns: tuple[str, ...], learnt: str) -> Dataset:
    """Read rows under the task that the adapter learnt, where they fit it."""
    from prgec.core.data.dataset import load_dataset

    if task == AUTO_TASK and learnt:
        with contextlib.suppress(DataError):
            return load_dataset(data, learnt, labelled=False, columns=columns)
    return load_dataset(data, task, labelled=False, columns=columns)


def _line(prediction: Prediction) -> str:
    prompt = " ".join(prediction.prompt.split())
    shown = prompt if len(prompt) <= _SHOWN_PROMPT else "..." + prompt[-_SHOWN_PROMPT:]
    losses = "  ".join(f"{text.strip()} {loss:.3f}" for text, loss in prediction.losses.items())
    return f"{prediction.completion.strip()}\t{shown}\t({losses})"

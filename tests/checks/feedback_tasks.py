"""Prompts with rewards that can be checked, and pairs of a better and a worse answer to them."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One prompt in this many is held out.
_HELD_OUT = 5
_SHORT = '[[reward]]\nname = "contains"\n\n[[reward]]\nname = "max_words"\nargument = 3\nweight = 0.5\n'
_OBJECT = '[[reward]]\nname = "json"\nargument = "name,colour"\n\n[[reward]]\nname = "contains"\nweight = 0.5\n'
_THINGS = (
    "apple red;lemon yellow;stone grey;river blue;horse brown;table brown;cloud white;candle white;violin brown;"
    "carpet red;garden green;bridge grey;feather white;ladder brown;pencil yellow;mirror silver;spoon silver;"
    "pillow white;tomato red;cherry red;carrot orange;frog green;raven black;elephant grey;bottle green;bucket blue;"
    "lamp yellow;piano black;brick red;pea green;rose red;swan white;tiger orange;whale blue;wolf grey;coin gold;"
    "basket brown;barrel brown;button black;ribbon blue"
)
_SHAPES = tuple(
    f'{verb} the name and the colour of a {{}} as JSON, like this: {{{{"name": "leaf", "colour": "green"}}}}'
    for verb in ("Give", "Write")
)

Row = dict[str, Any]


@dataclass(frozen=True)
class RewardTask:
    """A task whose answers can be judged without a person.

    Attributes:
        name: Its name.
        rows: Makes prompts with `answer` (for the reward), `chosen` and `rejected`; the same at each call.
        reward: Text of its file of rewards.
    """

    name: str
    rows: Callable[[], list[Row]]
    reward: str

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return self.name.replace(" ", "-")


def _row(prompt: str, answer: str, chosen: str, rejected: str) -> Row:
    turns = {"chosen": chosen, "rejected": rejected}
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "answer": answer,
        **{name: [{"role": "assistant", "content": text}] for name, text in turns.items()},
    }


def _questions() -> list[Row]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
    import make_chat

    rows = []
    for pairs, forms, _ in make_chat.KINDS:
        answers = [pair.split(" ", 1) for pair in pairs.split(";")]
        for number, (thing, right) in enumerate(answers):
            wrong = next(other for _, other in answers[number + 1 :] + answers if other != right)
            rows.append(
                _row(forms[0].format(thing), right, f"{right}.", f"That is a good question. I think it is {wrong}.")
            )
    return rows


def _objects() -> list[Row]:
    rows = []
    for thing in _THINGS.split(";"):
        name, colour = thing.split(" ")
        right = json.dumps({"name": name, "colour": colour})
        wrong = json.dumps({"name": "leaf", "colour": "green", "description": f"A simple {name}"})
        rows += [_row(shape.format(name), name, right, wrong) for shape in _SHAPES]
    return rows


def _sums() -> list[Row]:
    draw = random.Random(1)
    pairs = [(draw.randint(10, 49), draw.randint(10, 49)) for _ in range(100)]
    return [
        _row(
            f"What is {a} + {b}?", str(a + b), f"{a + b}", f"The sum of {a} and {b} is {a + b + draw.choice((-10, 1))}."
        )
        for a, b in pairs
    ]


TASKS = (
    RewardTask("short right answers", _questions, _SHORT),
    RewardTask("JSON with two keys", _objects, _OBJECT),
    RewardTask("sums of two digits", _sums, _SHORT),
)


def write_task(task: RewardTask, work: Path) -> tuple[int, int]:
    """Write prompts, pairs and the reward; return how many prompts there are to learn from, and held out.

    The folder of the task gets `train.jsonl` and `held-out.jsonl` (prompt and answer), `pairs.jsonl` (prompt, chosen
    and rejected, of the prompts to learn from) and `reward.toml`.
    """
    folder = work / task.folder
    folder.mkdir(parents=True, exist_ok=True)
    rows = task.rows()
    random.Random(3).shuffle(rows)
    train, held = [row for n, row in enumerate(rows) if n % _HELD_OUT], rows[::_HELD_OUT]
    fields = {
        "train": ("prompt", "answer"),
        "held-out": ("prompt", "answer"),
        "pairs": ("prompt", "chosen", "rejected"),
    }
    for name, names in fields.items():
        part = held if name == "held-out" else train
        lines = [json.dumps({field: row[field] for field in names}) + "\n" for row in part]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "reward.toml").write_text(task.reward, encoding="utf-8")
    return len(train), len(held)

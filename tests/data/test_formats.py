"""Rows as people bring them: every spelling becomes the same turns, and what cannot be honoured is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from prgec.core.data.cut import fit
from prgec.core.data.dataset import Dataset, load_dataset, load_datasets
from prgec.core.data.encode import encode_item, prompt_ids
from prgec.core.data.row import RowSizes
from prgec.core.data.show import marked_item, marked_row
from prgec.core.data.task import Conversation, Example, Item
from prgec.errors import DataError, UsageError
from tests.chat_tokenizer import byte_tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER, SAID = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}


def _load(tmp_path: Path, *records: dict[str, Any], **how: Any) -> Dataset:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return load_dataset(path, **how)


def _turns(item: Item) -> list[tuple[str, str]]:
    assert isinstance(item, Conversation)
    return [(turn["role"], turn["content"]) for turn in item.messages]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER, SAID]},
        {"conversation": [USER, SAID]},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]},
        {"conversations": [{"from": "user", "value": "hi"}, {"from": "chatgpt", "value": "yo"}]},
        {"conversations": json.dumps([{"from": "Human", "value": "hi"}, {"from": "model", "value": "yo"}])},
        {"prompt": [USER], "completion": [SAID]},
        {"prompt": [USER], "completion": "yo"},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
                SAID,
            ]
        },
        {"instruction": "hi", "input": "", "output": "yo"},
        {"instruction": "hi", "response": "yo", "context": None},
    ],
)
def test_every_spelling_of_a_conversation_is_one(tmp_path: Path, record: dict[str, Any]) -> None:
    (item,) = _load(tmp_path, record).examples
    assert _turns(item) == [("user", "hi"), ("assistant", "yo")]


@pytest.mark.parametrize("name", ["system", "system_prompt"])
def test_a_system_field_is_the_first_turn(tmp_path: Path, name: str) -> None:
    (item,) = _load(tmp_path, {name: "Be brief.", "conversations": [USER, SAID]}).examples
    assert _turns(item) == [("system", "Be brief."), ("user", "hi"), ("assistant", "yo")]


def test_what_a_prompt_of_turns_says_is_not_learned(tmp_path: Path) -> None:
    (item,) = _load(tmp_path, {"prompt": [USER, SAID, USER], "completion": "bye"}).examples
    (encoded,) = encode_item(item, byte_tokenizer(CHATML))
    assert byte_tokenizer(CHATML).decode(encoded.row.targets) == "bye"
    (asked,) = _load(tmp_path, {"prompt": [USER, SAID, USER]}, labelled=False, task_name="completion").examples
    assert prompt_ids(asked, byte_tokenizer(CHATML)) == list(encoded.row.tokens[: encoded.row.label_pos[0] + 1])


def test_an_instruction_without_a_chat_template_is_written_as_alpaca_writes_it(tmp_path: Path) -> None:
    dataset = _load(
        tmp_path, {"instruction": "Add", "input": "2 2", "output": "4"}, {"instruction": "Go", "output": "x"}
    )
    tokenizer = byte_tokenizer(None)
    rows = [encode_item(item, tokenizer)[0].row for item in dataset.examples]
    first, second = (marked_row(row, lambda ids: tokenizer.decode(ids, skip_special_tokens=False)) for row in rows)
    assert first.endswith("the request.\n\n### Instruction:\nAdd\n\n### Input:\n2 2\n\n### Response:\n⟦4</s>⟧")
    assert second.endswith("the request.\n\n### Instruction:\nGo\n\n### Response:\n⟦x</s>⟧") and "Input" not in second
    assert "paired with an input" in first and "paired with an input" not in second


def test_calls_written_as_text_become_objects(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "noon"},
        SAID,
    ]
    tools = [{"type": "function", "function": {"name": "clock"}}]
    (item,) = _load(tmp_path, {"messages": turns, "tools": json.dumps(tools)}).examples
    assert isinstance(item, Conversation) and item.tools == tuple(tools)
    assert item.messages[1]["content"] == ""
    assert item.messages[1]["tool_calls"][0]["function"]["arguments"] == {"zone": "UTC"}
    sharegpt = [
        {"from": "human", "value": "hi"},
        {"from": "function_call", "value": '{"name": "clock", "arguments": {"zone": "UTC"}}'},
        {"from": "observation", "value": "noon"},
        {"from": "gpt", "value": "yo"},
    ]
    (item,) = _load(tmp_path, {"conversations": sharegpt, "tools": ""}).examples
    assert isinstance(item, Conversation) and item.tools == ()
    assert item.messages[1]["tool_calls"][0]["function"] == {"name": "clock", "arguments": {"zone": "UTC"}}
    assert [role for role, _ in _turns(item)] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"conversations": [{"from": "hummany", "value": "x"}]},
            "turn 1 has the role 'hummany'.*known roles: human, user",
        ),
        ({"messages": ["hello"]}, "turn 1 is not an object but str"),
        ({"messages": [{**USER, "content": [{"type": "image_url"}]}, SAID]}, "holds a part of type image_url"),
        ({"messages": [USER, {**SAID, "function_call": {"name": "f"}}]}, 'turn 2 has "function_call"'),
        ({"messages": [USER, {**SAID, "weight": 0.5}]}, 'turn 2 has "weight" 0.5'),
        ({"messages": [USER, SAID], "weight": "two"}, "field \"weight\" is 'two'; expected a finite number"),
        ({"prompt": "p", "completion": "c", "weight": math.inf}, 'field "weight" is inf'),
        ({"messages": [USER, SAID], "tools": "clock"}, 'field "tools" is not a list of JSON schemas'),
        (
            {"prompt": "p", "chosen": "a", "rejected": "b"},
            "need a preference objective.*--objective dpo.*--map completion=chosen",
        ),
        ({"prompt": "p", "completion": "c", "label": False}, "unlearns the others.*--objective kto"),
        ({"instruction": "x", "output": " "}, 'field "output" is empty'),
        ({"text": "x", "label": None}, 'field "label" is NoneType'),
        ({"question": "x", "answer": "y"}, "name columns .--map prompt=COLUMN"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        _load(tmp_path, record)


def test_weights_of_one_are_none(tmp_path: Path) -> None:
    turns = [USER, {**SAID, "weight": 1}]
    tokenizer = byte_tokenizer(CHATML)
    (weighed,) = _load(tmp_path, {"messages": turns, "weight": 1.0}).examples
    (plain,) = _load(tmp_path, {"messages": [USER, SAID]}).examples
    assert [each.row for each in encode_item(weighed, tokenizer)] == [
        each.row for each in encode_item(plain, tokenizer)
    ]


def test_a_row_weighs_what_it_says(tmp_path: Path) -> None:
    records = [{"prompt": "p", "completion": "c", "weight": each} for each in (0, "-0.5", None)]
    records.append({"prompt": [USER], "completion": [SAID], "weight": 3})
    tokenizer = byte_tokenizer(CHATML)
    found = [
        fit(encode_item(each, tokenizer), RowSizes(99, 99, 999))[0]
        for record in records
        for each in _load(tmp_path, record).examples
    ]
    assert [set(row.weights) for row in found] == [{0.0}, {-0.5}, set(), {3.0}]
    assert all(len(row.weights) in (0, len(row.targets)) for row in found)


@pytest.mark.parametrize(
    ("labels", "answers"),
    [
        (["pos", "neg", "pos"], (" neg", " pos")),
        ([0, 3, 2], (" 0", " 2", " 3")),
        ([1.0, 0.0, 1.0], (" 0", " 1")),
        ([True, False, True], (" false", " true")),
    ],
)
def test_labels_of_any_kind_are_the_answers(tmp_path: Path, labels: list[Any], answers: tuple[str, ...]) -> None:
    dataset = _load(tmp_path, *({"text": f" t{n} ", "label": label} for n, label in enumerate(labels)))
    assert (dataset.task.name, dataset.candidates()) == ("label", answers)
    first = dataset.examples[0]
    assert isinstance(first, Example) and not first.ends
    assert marked_item(first) == f"t0\nLabel:⟦{first.completion}⟧"


def test_a_label_that_says_what_it_means_is_read_so(tmp_path: Path) -> None:
    dataset = _load(
        tmp_path, {"text": "a", "label": 0, "label_text": "joy"}, {"text": "b", "label": 1, "label_text": "fear"}
    )
    assert dataset.candidates() == (" fear", " joy")


def test_a_dev_file_of_one_label_knows_the_others(tmp_path: Path) -> None:
    for name, labels in {"train": ["a", "b"], "dev": ["b"]}.items():
        (tmp_path / name).write_text("\n".join(json.dumps({"text": "t", "label": each}) for each in labels))
    train, dev = load_datasets([tmp_path / "train", tmp_path / "dev"])
    assert train.candidates() == dev.candidates() == (" a", " b")


def test_columns_are_read_under_other_names(tmp_path: Path) -> None:
    record = {"meta": {"question": "2+2="}, "reply": "4", "prompt": "not this"}
    dataset = _load(tmp_path, record, columns=("prompt=meta.question", "completion=reply"))
    (example,) = dataset.examples
    assert isinstance(example, Example) and (example.prompt, example.completion) == ("2+2=", "4")
    assert dataset.task.name == "completion"


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        (("prompt",), UsageError, "--map 'prompt' is not of the form OURS=THEIRS"),
        (("prompt=a", "prompt=b"), UsageError, "--map names 'prompt' twice"),
        (("prompt=a",), DataError, 'no column "a" to read as "prompt"; found completion, q'),
    ],
)
def test_wrong_columns(tmp_path: Path, columns: tuple[str, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _load(tmp_path, {"q": "x", "completion": "y"}, columns=columns)


def test_learned_tokens_are_marked(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(CHATML)
    (item,) = _load(tmp_path, {"messages": [USER, SAID, USER, {**SAID, "weight": 0}, USER, SAID]}).examples
    (encoded,) = encode_item(item, tokenizer)
    text = marked_row(encoded.row, lambda ids: tokenizer.decode(ids, skip_special_tokens=False))
    turn = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert text == f"{turn}⟦yo<|im_end|>⟧\n{turn}yo<|im_end|>\n{turn}⟦yo<|im_end|>⟧"


def test_rows_to_predict_are_of_the_task_that_reads_all_of_them(tmp_path: Path) -> None:
    """A text with a label is not plain text, although that would do without the label."""
    path = tmp_path / "rows.csv"
    path.write_text("text,label\na,x\nb,y\n", encoding="utf-8")
    assert load_dataset(path, labelled=False).task.name == load_dataset(path).task.name == "label"
    path.write_text("Text,Label\na,x\nb,y\n", encoding="utf-8")
    assert load_dataset(path, labelled=False).task.name == load_dataset(path).task.name == "label"
    path.write_text("text\na\nb\n", encoding="utf-8")
    assert load_dataset(path, labelled=False).task.name == "text"

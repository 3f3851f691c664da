"""Published files are recognised and read; templates are those of the paper."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from prgec.core.data.dataset import load_dataset
from prgec.core.data.task import Example
from prgec.core.data.tasks import TASKS
from prgec.errors import DataError
from tests.published import SAMPLES, write_sample

# The P-RGE paper's Table 8, row by row, with the typesetter's closing tags taken out. `Yes/No` and `terrible/great`
# name the candidates. BoolQ's row calls the question's end `<answer>`; the pronoun's and the word's quotes are kept.
TABLE_8 = {
    "sst2": "<text> It was terrible/great",
    "rte": '<premise> Does this mean that "<hypothesis>" is true? Yes or No? Yes/No',
    "mrpc": "Do the following two sentences mean the same thing? Yes or No? Sentence 1: <sentence1> "
    "Sentence 2: <sentence2> Yes/No",
    "qqp": "Are these two questions asking the same thing? Yes or No? Question 1: <question1> Question 2: <question2> "
    "Yes/No",
    "qnli": "Does this sentence answer the question? Yes or No? Sentence 1: <sentence1> Sentence 2: <sentence2> Yes/No",
    "wnli": "Given the first sentence, is the second sentence true? Yes or No? Sentence 1: <sentence1> "
    "Sentence 2: <sentence2> Yes/No",
    "boolq": "<passage> <question>? Yes/No",
    "wsc": '<text> In the previous sentence, does the pronoun "<span2>" refer to <span1>? Yes/No',
    "wic": 'Does the word "<word>" have the same meaning in these two sentences? <sent1> <sent2> Yes, No?',
    "multirc": '<paragraph> Question: <question> I found this answer "<answer>". Is that correct? Yes or No?',
    "copa": "<premise> so/because <candidate>",
    "winogrande": "<context> <subject> <object>",
    "squad": "Title: <title> Context: <context> Question: <question> Answer:",
}
# Names of our fields in the table.
NAMES = {
    "sst2": {"sentence": "text"},
    "qnli": {"question": "sentence1", "sentence": "sentence2"},
    "wsc": {"span2_text": "span2", "span1_text": "span1"},
    "wic": {"sentence1": "sent1", "sentence2": "sent2"},
}


def _words(text: str) -> list[str]:
    """Words of a prompt without what asks for the answer, which the table leaves out or moves in some rows."""
    text = re.sub(r"(Yes or No\?|Yes, No\?|Yes/No|terrible/great)", " ", text)
    return text.split()


def _sample(task: str, record: dict[str, Any], tmp_path: Path) -> Example:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(record))
    (example,) = load_dataset(path, task).examples
    assert isinstance(example, Example)
    return example


@pytest.mark.parametrize("task", [name for name in TABLE_8 if name not in ("copa", "winogrande", "squad")])
def test_cloze_has_the_words_of_the_table(task: str, tmp_path: Path) -> None:
    fields = {name: f"<{NAMES.get(task, {}).get(name, name)}>" for name in TASKS[task].fields}
    example = _sample(task, {**fields, TASKS[task].answer_field: 0}, tmp_path)
    assert _words(example.prompt) == _words(TABLE_8[task])
    expected = {" terrible", " great"} if task == "sst2" else {"Yes", "No"}
    assert set(TASKS[task].candidates) == expected


def test_copa_has_the_words_of_the_table(tmp_path: Path) -> None:
    record = {"premise": "<premise>.", "choice1": "<candidate>", "choice2": "I <other>", "label": 1}
    prompts = [_sample("copa", {**record, "question": kind}, tmp_path).prompt for kind in ("effect", "cause")]
    assert prompts == ["<premise> so", "<premise> because"]
    example = _sample("copa", {**record, "question": "effect"}, tmp_path)
    assert example.candidates == (" <candidate>", " I <other>")
    assert example.completion == " I <other>"


def test_winogrande_has_the_words_of_the_table(tmp_path: Path) -> None:
    record = {"sentence": "<context> _ <object>", "option1": "<subject>", "option2": "<other>", "answer": "1"}
    example = _sample("winogrande", record, tmp_path)
    assert (example.prompt + str(example.completion)).split() == TABLE_8["winogrande"].split()
    assert example.candidates == (" <subject> <object>", " <other> <object>")


def test_squad_has_the_words_of_the_table(tmp_path: Path) -> None:
    record = {
        "title": "<title>",
        "context": "<context>",
        "question": "<question>",
        "answers": {"text": ["one", "1", "one"], "answer_start": [0, 0, 0]},
    }
    example = _sample("squad", record, tmp_path)
    assert example.prompt.split() == TABLE_8["squad"].split()
    assert example.completion == " one\n"
    assert example.references == ("one", "1")


# Whole texts, white space included: what the model sees.
GOLDEN = {
    "sst2": ('Dan says the drum is red. " so good It was', " terrible"),
    "rte": (
        'Dan says the drum is red.\nDoes this mean that "Cleo says the drum is warm." is true? Yes or No?\n',
        "Yes",
    ),
    "mrpc": (
        "Do the following two sentences mean the same thing? Yes or No?\nSentence 1: Dan says the drum is red.\n"
        "Sentence 2: Cleo says the drum is warm.\n",
        "No",
    ),
    "qqp": (
        "Are these two questions asking the same thing? Yes or No?\nQuestion 1: Who has the drum?\n"
        "Question 2: Who took the drum?\n",
        "No",
    ),
    "qnli": (
        "Does this sentence answer the question? Yes or No?\nSentence 1: Who has the drum?\n"
        "Sentence 2: Dan says the lamp is loud.\n",
        "Yes",
    ),
    "wnli": (
        "Given the first sentence, is the second sentence true? Yes or No?\n"
        "Sentence 1: Dan says the drum is red.\nSentence 2: Cleo says the drum is warm.\n",
        "No",
    ),
    "boolq": ("Ada says the cake is warm. Is the drum warm?\n", "No"),
    "wsc": (
        'Ada left. She took the drum.\nIn the previous sentence, does the pronoun "she" refer to Ada? Yes or No?\n',
        "No",
    ),
    "wic": (
        'Does the word "light" have the same meaning in these two sentences? Yes, No?\n'
        "A light lamp. Dan says the drum is red.\nThe light is on.\n",
        "No",
    ),
    "multirc": (
        "<b>Sent 1: </b>Dan says the lamp is loud.\nQuestion: What is the drum?\n"
        'I found this answer "red". Is that correct? Yes or No?\n',
        "No",
    ),
    "copa": ("Dan says the drum is red because", " cleo was glad."),
    "winogrande": ("Ada met Ben because", " Ada wanted the drum."),
    "squad": ("Title: Things\nContext: They say the drum is warm.\nQuestion: How is the drum?\nAnswer:", " warm\n"),
}


@pytest.mark.parametrize("task", SAMPLES)
def test_golden(task: str, tmp_path: Path) -> None:
    dataset = load_dataset(write_sample(tmp_path, task))
    assert dataset.task.name == task
    first = dataset.examples[0]
    assert isinstance(first, Example)
    assert (first.prompt, first.completion) == GOLDEN[task]


HUB_NAMES = {
    "rte": {"sentence1": "a", "sentence2": "b", "label": 1},
    "mrpc": {"sentence1": "a", "sentence2": "b", "label": 1, "idx": 0},
    "qqp": {"question1": "a", "question2": "b", "label": 1, "idx": 0},
    "boolq": {"question": "a", "answer": True, "passage": "b"},
    "wsc": {"text": "a", "span1_index": 0, "span2_index": 4, "span1_text": "b", "span2_text": "c", "label": 1},
    "multirc": {"paragraph": "a", "question": "b", "answer": "c", "idx": {"paragraph": 0}, "label": 1},
}


@pytest.mark.parametrize("task", HUB_NAMES)
def test_names_of_the_hub(task: str, tmp_path: Path) -> None:
    record = HUB_NAMES[task]
    example = _sample(task, record, tmp_path)
    assert example.completion == ("No" if task == "rte" else "Yes")


def test_same_fields_need_a_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(HUB_NAMES["mrpc"]))
    with pytest.raises(DataError, match="fit the tasks rte, mrpc, wnli .*name one with --task"):
        load_dataset(path)
    named = tmp_path / "MRPC" / "dev.jsonl"
    named.parent.mkdir()
    named.write_text(path.read_text())
    dataset = load_dataset(named)
    assert dataset.task.name == "mrpc"
    assert dataset.describe().startswith("task mrpc (from the fields sentence1, sentence2, label and the name of")


def test_text_with_a_label_is_not_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "fine", "label": 1}')
    assert load_dataset(path).task.name == "label"


def test_mixed_formats(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"sentence": "x", "label": 1}\n{"prompt": "x", "completion": "y"}')
    with pytest.raises(
        DataError,
        match=r"mixed formats in one file: found completion, prompt; task sst2 needs "
        r"sentence, label, which line 1 has \(.*line 2\)",
    ):
        load_dataset(path)


def test_unlabelled_test_split(tmp_path: Path) -> None:
    path = tmp_path / "QNLI" / "test.tsv"
    path.parent.mkdir()
    path.write_text("index\tquestion\tsentence\n0\twho?\tnobody.\n")
    dataset = load_dataset(path, labelled=False)
    assert dataset.task.name == "qnli"
    with pytest.raises(DataError, match='missing field "label": found index, question, sentence; task qnli needs'):
        load_dataset(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "sentence\tlabel\nx\n", "1 columns, but the header has 2 .*line 2"),
        ("a.tsv", "sentence\tlabel\n", "the data file is empty"),
        ("a.tsv", b"\xff\xfe", r"not UTF-8 text \(byte 1\)"),
        ("a.txt", " \n", "the data file is empty"),
        ("a.json", "[1]", "item 1 is not a JSON object but int"),
        ("a.json", "[]", "the data file is empty"),
        ("a.json", '{"data": [{"title": "t"}, {"paragraphs": []}]}', "not the published layout: KeyError 'paragraphs'"),
        ("a.json", "{", "invalid JSON"),
        ("a.jsonl", '{"passage": {"text": "t", "questions": [{}]}}', "not the published layout: KeyError 'answers'"),
        ("a.parquet", "no", "the file is named .parquet or .arrow, but holds neither"),
        ("a.parquet", "PAR1no", "pyarrow cannot read it: "),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=message):
        load_dataset(path)


def test_whatever_datasets_saved(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"sentence": f"x{i}", "label": i % 2, "idx": i} for i in range(5)])
    rows.save_to_disk(str(tmp_path / "saved"))
    rows.to_parquet(str(tmp_path / "rows.parquet"))
    (tmp_path / "repository").mkdir()
    rows.to_json(str(tmp_path / "repository" / "train.jsonl"))
    texts = [
        [example.prompt for example in load_dataset(path).examples if isinstance(example, Example)]
        for path in (tmp_path / "saved", tmp_path / "rows.parquet", Path(f"hf:{tmp_path / 'repository'}"))
    ]
    assert texts == [[f"x{i} It was" for i in range(5)]] * 3


def test_low_volume_is_disjoint_and_repeatable(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"sentence": f"x{i}", "label": i % 2}) + "\n" for i in range(1700)))
    dataset = load_dataset(path)
    train, dev = dataset.low_volume(seed=3)
    assert (len(train.examples), len(dev.examples)) == (1000, 500)
    assert not set(train.examples) & set(dev.examples)
    assert dataset.low_volume(seed=3) == (train, dev) != dataset.low_volume(seed=4)
    assert len(dataset.sample(1000, seed=3).examples) == 1000
    few, rest = train.sample(30, seed=0).low_volume(seed=0)
    assert (len(few.examples), len(rest.examples)) == (20, 10)

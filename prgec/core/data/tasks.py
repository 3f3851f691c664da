"""The table of tasks. To add one, add a row to `TASKS`, or write a TOML file (`own_task.py`).

Templates are those of the P-RGE paper (arXiv 2409.15520, Table 8), which takes SST-2, RTE, BoolQ, WSC, WiC, MultiRC,
COPA and SQuAD from MeZO (Malladi et al., 2023), MRPC, QQP, QNLI and WNLI after PromptSource, and WinoGrande from Zhang
et al. (2024). Where the table's typesetting leaves white space or the place of "Yes or No?" open, MeZO decides
(docs/decisions/008-task-templates.md). Fields have the names of the published files, with those of other releases as
aliases.
"""

from __future__ import annotations

from prgec.core.contract.plugins import load_plugin, plugins_of
from prgec.core.data.alpaca import AlpacaFormat
from prgec.core.data.formats import ChatFormat, CompletionFormat, LabelFormat, TextFormat
from prgec.core.data.jsonl import Record
from prgec.core.data.task import CORRELATION, MATTHEWS, ROUGE, SPAN_F1, Task, TemplateTask, Values
from prgec.errors import DataError, UsageError

AUTO_TASK = "auto"
TASK_HELP = "How fields become prompts: auto (from the fields), a known task, or a .toml file with your own."
NO_EOS_HELP = "Learn free completions without their end; an answer then goes on until it is stopped."
TOML_SUFFIX = ".toml"

_NO_YES, _YES_NO = ("No", "Yes"), ("Yes", "No")
_NEGATIVE_POSITIVE = {"0": 0, "1": 1, "false": 0, "true": 1}
_ENTAILMENT = {"entailment": 0, "not_entailment": 1, "0": 0, "1": 1}
_PAIR_OF_SENTENCES = "Sentence 1: {sentence1}\nSentence 2: {sentence2}\n"


def _boolq(values: Values, record: Record) -> Values:
    question = values["question"] if values["question"].endswith("?") else values["question"] + "?"
    return {**values, "question": question[:1].upper() + question[1:]}


def _wsc(values: Values, record: Record) -> Values:
    return {**values, "span2_text": values["span2_text"].lower()}


def _copa(values: Values, record: Record) -> Values:
    conjunctions = {"effect": "so", "cause": "because"}
    if values["question"] not in conjunctions:
        raise DataError(f'field "question" is {values["question"]!r}; expected cause or effect', where=record.where)
    lowered = {name: _lower_first(values[name]) for name in ("choice1", "choice2")}
    return {
        **values,
        **lowered,
        "premise": values["premise"].removesuffix("."),
        "conjunction": conjunctions[values["question"]],
    }


def _lower_first(text: str) -> str:
    first, space, rest = text.partition(" ")
    return text if first == "I" else first.lower() + space + rest


def _winogrande(values: Values, record: Record) -> Values:
    context, blank, rest = values["sentence"].partition("_")
    if not blank or "_" in rest:
        raise DataError('field "sentence" has no single blank "_"', where=record.where)
    return {**values, "context": context.rstrip(), "object": rest}


_TASKS: tuple[Task, ...] = (
    TemplateTask(
        name="sst2",
        fields=("sentence",),
        answer_field="label",
        template="{sentence} It was",
        choices=(" terrible", " great"),
        labels={"0": 0, "1": 1, "negative": 0, "positive": 1, "terrible": 0, "great": 1},
    ),
    TemplateTask(
        name="rte",
        fields=("premise", "hypothesis"),
        answer_field="label",
        template='{premise}\nDoes this mean that "{hypothesis}" is true? Yes or No?\n',
        choices=_YES_NO,
        labels=_ENTAILMENT,
        aliases={"premise": ("sentence1",), "hypothesis": ("sentence2",)},
    ),
    TemplateTask(
        name="mrpc",
        fields=("sentence1", "sentence2"),
        answer_field="label",
        template="Do the following two sentences mean the same thing? Yes or No?\n" + _PAIR_OF_SENTENCES,
        choices=_NO_YES,
        labels=_NEGATIVE_POSITIVE,
        aliases={"sentence1": ("#1 String",), "sentence2": ("#2 String",), "label": ("Quality",)},
    ),
    TemplateTask(
        name="qqp",
        fields=("question1", "question2"),
        answer_field="label",
        template="Are these two questions asking the same thing? Yes or No?\n"
        "Question 1: {question1}\nQuestion 2: {question2}\n",
        choices=_NO_YES,
        labels=_NEGATIVE_POSITIVE,
        aliases={"label": ("is_duplicate",)},
    ),
    TemplateTask(
        name="qnli",
        fields=("question", "sentence"),
        answer_field="label",
        template="Does this sentence answer the question? Yes or No?\nSentence 1: {question}\nSentence 2: {sentence}\n",
        choices=_YES_NO,
        labels=_ENTAILMENT,
    ),
    TemplateTask(
        name="wnli",
        fields=("sentence1", "sentence2"),
        answer_field="label",
        template="Given the first sentence, is the second sentence true? Yes or No?\n" + _PAIR_OF_SENTENCES,
        choices=_NO_YES,
        labels=_NEGATIVE_POSITIVE,
    ),
    TemplateTask(
        name="boolq",
        fields=("passage", "question"),
        answer_field="label",
        template="{passage} {question}\n",
        choices=_NO_YES,
        labels=_NEGATIVE_POSITIVE,
        aliases={"label": ("answer",)},
        derive=_boolq,
    ),
    TemplateTask(
        name="wsc",
        fields=("text", "span1_text", "span2_text"),
        answer_field="label",
        template='{text}\nIn the previous sentence, does the pronoun "{span2_text}" refer to {span1_text}? '
        "Yes or No?\n",
        choices=_NO_YES,
        labels=_NEGATIVE_POSITIVE,
        aliases={"span1_text": ("target.span1_text",), "span2_text": ("target.span2_text",)},
        derive=_wsc,
    ),
    TemplateTask(
        name="wic",
        fields=("word", "sentence1", "sentence2"),
        answer_field="label",
        template='Does the word "{word}" have the same meaning in these two sentences? Yes, No?\n'
        "{sentence1}\n{sentence2}\n",
        choices=_NO_YES,
        labels=_NEGATIVE_POSITIVE,
    ),
    TemplateTask(
        name="multirc",
        fields=("paragraph", "question", "answer"),
        answer_field="label",
        template='{paragraph}\nQuestion: {question}\nI found this answer "{answer}". Is that correct? Yes or No?\n',
        choices=_NO_YES,
        labels=_NEGATIVE_POSITIVE,
    ),
    TemplateTask(
        name="copa",
        fields=("premise", "choice1", "choice2", "question"),
        answer_field="label",
        template="{premise} {conjunction}",
        choices=(" {choice1}", " {choice2}"),
        labels={"0": 0, "1": 1},
        derive=_copa,
    ),
    TemplateTask(
        name="winogrande",
        fields=("sentence", "option1", "option2"),
        answer_field="answer",
        template="{context}",
        choices=(" {option1}{object}", " {option2}{object}"),
        labels={"1": 0, "2": 1},
        derive=_winogrande,
    ),
    # Tasks of GLUE whose fields are another's: their names decide. CoLA and STS-B are for encoders above all; MNLI has
    # the form of MeZO's CB.
    TemplateTask(
        name="cola",
        fields=("sentence",),
        answer_field="label",
        template="{sentence}\nIs this sentence grammatical? Yes or No?\n",
        choices=_NO_YES,
        labels={"0": 0, "1": 1, "unacceptable": 0, "acceptable": 1},
        metric=MATTHEWS,
        is_named=True,
    ),
    TemplateTask(
        name="mnli",
        fields=("premise", "hypothesis"),
        answer_field="label",
        template='Suppose {premise} Can we infer that "{hypothesis}"? Yes, No, or Maybe?\n',
        choices=("Yes", "Maybe", "No"),
        labels={"entailment": 0, "neutral": 1, "contradiction": 2, "0": 0, "1": 1, "2": 2},
        aliases={"premise": ("sentence1",), "hypothesis": ("sentence2",), "label": ("gold_label",)},
        is_named=True,
    ),
    TemplateTask(
        name="stsb",
        fields=("sentence1", "sentence2"),
        answer_field="label",
        template="How alike are these two sentences, from 0 to 5?\n" + _PAIR_OF_SENTENCES,
        answer="{answer}",
        metric=CORRELATION,
        aliases={"label": ("score",)},
        is_named=True,
    ),
    TemplateTask(
        name="dialogsum",
        fields=("dialogue",),
        answer_field="summary",
        template="{dialogue}\nSummary:",
        answer=" {answer}\n",
        metric=ROUGE,
    ),
    # The line break is learned as the end of the answer.
    TemplateTask(
        name="squad",
        fields=("title", "context", "question"),
        answer_field="answers",
        template="Title: {title}\nContext: {context}\nQuestion: {question}\nAnswer:",
        answer=" {answer}\n",
        metric=SPAN_F1,
    ),
    CompletionFormat(),
    AlpacaFormat(),
    ChatFormat(),
    LabelFormat(),
    TextFormat(),
)

TASKS: dict[str, Task] = {task.name: task for task in _TASKS}
# Packages add tasks by entry points of this group: a Task under its name.
ENTRY_POINTS = "prgec.tasks"
TASKS |= {name: load_plugin(point, Task) for name, point in plugins_of(ENTRY_POINTS, TASKS).items()}


def find_task(name: str) -> Task:
    """Return the task of that name, or the one a TOML file describes.

    Raises:
        UsageError: If the table has no such task, or the file is not a task.
    """
    if name.endswith(TOML_SUFFIX):
        from prgec.core.data.own_task import read_task

        return read_task(name)
    if name not in TASKS:
        raise UsageError(f"unknown task {name!r}", hint=f"known: {AUTO_TASK}, {', '.join(TASKS)}, or a .toml file")
    return TASKS[name]

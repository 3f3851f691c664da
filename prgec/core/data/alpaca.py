"""Alpaca's rows: an instruction, perhaps something to apply it to, and the output.

They are a conversation where the model has a chat template. Where it has none, they are written as Stanford's Alpaca
writes them (github.com/tatsu-lab/stanford_alpaca).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prgec.core.contract.chat import ASSISTANT
from prgec.core.data.jsonl import Record, text_of
from prgec.core.data.task import LOSS, Conversation, Example, find
from prgec.core.data.turns import system_turn
from prgec.errors import DataError

_ABOUT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n",
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n",
)


@dataclass(frozen=True, kw_only=True)
class AlpacaFormat:
    """Instruction, input where there is one, and output; `history` holds earlier rounds."""

    name: str = "alpaca"
    fields: tuple[str, ...] = ("instruction",)
    answer_field: str = "output"
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"output": ("response",)})
    candidates: tuple[str, ...] = ()
    metric: str = LOSS
    most_answers: int = 0
    has_labels: bool = False

    def item(self, record: Record, *, labelled: bool) -> Conversation:
        """Return the row as a conversation that is also plain text.

        Raises:
            DataError: If a field is missing or no text, or the output is empty.
        """
        instruction = text_of(find(record, "instruction", self.aliases), "instruction", record).strip()
        given = text_of(record.fields.get("input") or record.fields.get("context") or "", "input", record).strip()
        output = text_of(find(record, "output", self.aliases), "output", record) if labelled else ""
        if labelled and not output.strip():
            raise DataError('field "output" is empty', where=record.where)
        rounds = _history(record)
        turns = [turn for asked, said in rounds for turn in (_user(asked), _assistant(said))]
        turns.append(_user(f"{instruction}\n{given}" if given else instruction))
        answer = [_assistant(output)] if labelled else []
        plain = Example(
            _stanford(rounds, instruction, given), output if labelled else None, record.where, ends=labelled
        )
        return Conversation((*system_turn(record), *turns, *answer), record.where, plain=plain)


def _stanford(rounds: Sequence[tuple[str, str]], instruction: str, given: str) -> str:
    earlier = "".join(f"### Instruction:\n{asked}\n\n### Response:\n{said}\n\n" for asked, said in rounds)
    block = f"### Input:\n{given}\n\n" if given else ""
    return f"{_ABOUT[bool(given)]}{earlier}### Instruction:\n{instruction}\n\n{block}### Response:\n"


def _history(record: Record) -> list[tuple[str, str]]:
    rounds = record.fields.get("history") or []
    if not isinstance(rounds, list) or any(not isinstance(each, list | tuple) or len(each) != 2 for each in rounds):
        raise DataError('field "history" is not a list of pairs of a question and its answer', where=record.where)
    return [(text_of(asked, "history", record), text_of(said, "history", record)) for asked, said in rounds]


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, str]:
    return {"role": ASSISTANT, "content": text}

"""A process that holds a program and answers lines of JSON: `python -m prgec.serve.ui.inference_worker PROGRAM`.

It answers without an adapter and with one, so that a reader sees what training changed. Apart from the page: a program
that takes the process with it takes no page.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prgec.errors import PrgecError

if TYPE_CHECKING:
    from prgec.core.contract.arrays import State
    from prgec.core.contract.engine import Engine

BASE, TRAINED = "without the adapter", "with the adapter"


def main(arguments: Sequence[str]) -> int:
    """Answer what stdin asks until it ends."""
    # Libraries print to stdout; the answers are alone there.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answering: InferenceWorker | None = None
    for line in sys.stdin:
        try:
            answering = answering or InferenceWorker(Path(arguments[0]))
            reply: dict[str, Any] = {"answer": answering.answer(json.loads(line))}
        except PrgecError as error:
            reply = {"error": str(error)}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()
    return 0


class InferenceWorker:
    """A program with its states.

    Args:
        path: The program.
    """

    def __init__(self, path: Path) -> None:
        from prgec.core.machine.quiet import quiet_libraries
        from prgec.runtime.runs.open import open_with_adapter

        quiet_libraries()
        self._program: Engine = open_with_adapter(path, None)
        self._states: dict[str, State] = {BASE: self._program.read_state()}
        self._adapter = ""

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return what each state says to a text or a conversation."""
        self._take(str(question.get("adapter") or ""))
        say = {"chat": self._chat, "predict": self._predict, "template": self._has_template}[question["kind"]]
        answers = {}
        for name, state in self._states.items():
            self._program.write_state(state)
            answers[name] = say(question)
        return answers

    def _has_template(self, question: Mapping[str, Any]) -> bool:
        """Whether a conversation is one of turns."""
        del question
        return self._program.tokenizer.chat_template is not None

    def _take(self, adapter: str) -> None:
        """Learn the state of another adapter; forget the one before."""
        from prgec.core.formats.adapter import load_adapter

        if adapter == self._adapter:
            return
        self._states.pop(TRAINED, None)
        self._adapter = ""
        if adapter:
            self._program.write_state(self._states[BASE])
            load_adapter(Path(adapter), self._program)
            self._states[TRAINED] = self._program.read_state()
            self._adapter = adapter

    def _predict(self, question: Mapping[str, Any]) -> list[dict[str, Any]]:
        from prgec.core.data.task import example_of
        from prgec.core.data.tasks import find_task
        from prgec.errors import UsageError
        from prgec.runtime.training.predict import predict

        candidates = tuple(question["candidates"])
        task: Any = find_task(question["task"])
        if len(getattr(task, "fields", ())) > 1 or not hasattr(task, "prompt_of"):
            raise UsageError(f"task {task.name} reads more than a text", hint="choose one of a single field")
        examples = [example_of(task, text, "the text") for text in question["texts"]]
        found = predict(self._program, examples, candidates or task.candidates)
        return [{"answer": each.completion.strip(), "losses": each.losses} for each in found]

    def _chat(self, question: Mapping[str, Any]) -> str:
        from prgec.core.data.encode import prompt_ids
        from prgec.core.data.task import Conversation, Document
        from prgec.runtime.training.reader import Answer, Reader
        from prgec.runtime.training.sampling import Sampler, Sampling

        tokenizer = self._program.tokenizer
        messages = list(question["messages"])
        has_template = tokenizer.chat_template is not None
        item = Conversation(tuple(messages), "the chat") if has_template else Document(messages[-1]["content"], "")
        prompt = prompt_ids(item, tokenizer)
        sampler = Sampler(Sampling(0.0, 0, 1.0, 0))
        answer = Answer(
            Reader(self._program),
            prompt,
            sampler,
            tokenizer.decode,
            ends=tuple(tokenizer.end_ids),
            max_tokens=int(question["max_tokens"]),
        )
        return "".join(answer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

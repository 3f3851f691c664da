"""`prgec chat`: talk to a compiled program, and see what training changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prgec.cli.interrupt import stop_on_interrupt
from prgec.cli.render import print_lines, print_part, stderr_console
from prgec.cli.verify_option import NO_VERIFY
from prgec.core.data.task import Conversation, Document
from prgec.core.formats.thumbs import better_answer, note_answer
from prgec.errors import UsageError

if TYPE_CHECKING:
    from prgec.core.contract.arrays import State
    from prgec.core.contract.engine import Engine

FILE = click.Path(path_type=Path)
_PROMPT = "> "


@click.command()
@click.argument("program", type=FILE)
@click.option("--adapter", type=FILE, help="adapter.safetensors of a run, or a PEFT folder.")
@click.option("--compare", is_flag=True, help="Answer without the adapter too; the conversation goes on with it.")
@click.option("--system", help="What the conversation begins with, as the chat template's system message.")
@click.option("--max-tokens", type=int, default=128, show_default=True, help="Most tokens of an answer.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: the most likely token always.")
@click.option("--top-k", type=int, default=0, show_default=True, help="Draw among the K most likely tokens; 0: all.")
@click.option("--top-p", type=float, default=1.0, show_default=True, help="Draw among tokens of this probability.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draws.")
@click.option("--stop", "stops", multiple=True, help="A text that ends an answer; repeat for more.")
@click.option("--think", is_flag=True, help="Let a model that can reason do so before it answers.")
@click.option(
    "--feedback",
    type=FILE,
    help="Append rows to this file for prgec run --objective kto: a line + says that the last answer was good, - that "
    "it was not, and = TEXT what a better one is.",
)
@NO_VERIFY
def chat(
    program: Path,
    adapter: Path | None,
    compare: bool,
    system: str | None,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    stops: tuple[str, ...],
    think: bool,
    feedback: Path | None,
    no_verify: bool,
) -> int:
    """Answer each line of stdin with PROGRAM (a .pte compiled with --generate --context C)."""
    from prgec.runtime.training.reader import Reader
    from prgec.runtime.training.sampling import Sampling

    sampling = Sampling(temperature, top_k, top_p, seed)
    sampling.check()
    if max_tokens < 1:
        raise UsageError(f"--max-tokens is {max_tokens}; expected at least 1")
    if compare and adapter is None:
        raise UsageError("--compare shows an adapter beside the program without it", hint="name one with --adapter")
    loaded, states = _open(program, adapter, compare, verify=not no_verify)
    talk = _Talk(loaded, states, Reader(loaded), sampling, max_tokens, stops, thinks=think)
    judged = _Feedback(feedback, talk) if feedback is not None else None
    if loaded.tokenizer.chat_template is None:
        _say("the checkpoint has no chat template: each line is gone on from as plain text")
    elif system is not None:
        talk.messages.append({"role": "system", "content": system})
    with stop_on_interrupt("stopping") as should_stop:
        for line in _lines():
            if judged is not None and judged.takes(line):
                continue
            if should_stop() or not talk.answer(line, should_stop):
                break
    return 0


class _Talk:
    """A conversation.

    Attributes:
        messages: The conversation so far.
    """

    def __init__(
        self,
        program: Engine,
        states: dict[str, State],
        reader: Any,
        sampling: Any,
        max_tokens: int,
        stops: tuple[str, ...],
        *,
        thinks: bool,
    ) -> None:
        from prgec.runtime.training.sampling import Sampler

        self._program, self._states, self._reader = program, states, reader
        # Each draws as if it were alone.
        self._samplers = {name: Sampler(sampling) for name in states}
        self._max_tokens, self._stops, self._thinks = max_tokens, stops, thinks
        self.messages: list[dict[str, str]] = []

    @property
    def has_template(self) -> bool:
        """Whether the conversation is one of turns; otherwise each line is a text of its own."""
        return self._program.tokenizer.chat_template is not None

    def answer(self, line: str, should_stop: Any) -> bool:
        """Answer a line; return whether there is room for another."""
        from prgec.core.data.encode import prompt_ids

        tokenizer = self._program.tokenizer
        self.messages.append({"role": "user", "content": line})
        asked = Conversation(tuple(self.messages), "the chat") if self.has_template else Document(line, "the line")
        prompt = prompt_ids(asked, tokenizer, thinks=self._thinks)
        if len(prompt) > self._reader.context:
            _say(
                f"the conversation has {len(prompt)} tokens, and the program's cache holds {self._reader.context}: full"
            )
            return False
        is_full, text = False, ""
        for name in self._states:
            if len(self._states) > 1:
                self._program.write_state(self._states[name])
                self._reader.forget()
                print_part(f"{name}: ")
            is_full, text = self._write(name, prompt, should_stop)
        self.messages.append({"role": "assistant", "content": text})
        if is_full:
            _say(f"the program's cache of {self._reader.context} tokens is full: the conversation ends here")
        return not is_full

    def _write(self, name: str, prompt: list[int], should_stop: Any) -> tuple[bool, str]:
        from prgec.runtime.training.reader import Answer

        tokenizer = self._program.tokenizer
        answer = Answer(
            self._reader,
            prompt,
            self._samplers[name],
            tokenizer.decode,
            ends=tuple(tokenizer.end_ids),
            max_tokens=self._max_tokens,
            stops=self._stops,
        )
        for part in answer:
            print_part(part)
            if should_stop():
                break
        print_lines("")
        return answer.is_full, answer.text


class _Feedback:
    """Rows that say which answers were good.

    Args:
        path: The file; rows are appended.
        talk: The conversation.
    """

    def __init__(self, path: Path, talk: _Talk) -> None:
        self._path, self._talk = path, talk

    def takes(self, line: str) -> bool:
        """Return whether a line is about the last answer; its rows are in the file then.

        Raises:
            UsageError: If the file cannot be written.
        """
        mark, better = line[:1], line[1:].strip()
        if mark not in ("+", "-", "=") or (mark != "=" and better) or (mark == "=" and not better):
            return False
        messages = self._talk.messages
        if not messages or messages[-1]["role"] != "assistant":
            _say("there is no answer yet")
            return True
        if mark == "=":
            note_answer(self._path, messages, is_good=False, is_chat=self._talk.has_template)
            messages[-1] = better_answer(better, is_chat=self._talk.has_template)
        note_answer(self._path, messages, is_good=mark != "-", is_chat=self._talk.has_template)
        _say(f"noted in {self._path}")
        return True


def _open(program: Path, adapter: Path | None, compare: bool, *, verify: bool) -> tuple[Engine, dict[str, State]]:
    """The program with its adapter, and the states to answer with by name."""
    from prgec.core.formats.adapter import load_adapter
    from prgec.runtime.runs.open import open_with_adapter

    loaded = open_with_adapter(program, None, verify=verify)
    base = loaded.read_state() if compare else {}
    if adapter is not None:
        load_adapter(adapter, loaded)
    trained = loaded.read_state() if compare else {}
    return loaded, {"base": base, "adapter": trained} if compare else {"": {}}


def _lines() -> Iterator[str]:
    """Lines of stdin that say something."""
    while True:
        if sys.stdin.isatty():
            stderr_console().print(_PROMPT, end="")
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.rstrip("\n")


def _say(text: str) -> None:
    stderr_console().print(text, markup=False, soft_wrap=True)

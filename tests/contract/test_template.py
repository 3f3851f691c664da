"""Templates are written as transformers writes them, and cannot leave their sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from prgec.core.contract.template import render

FOLDER = Path(__file__).resolve().parents[1] / "templates"
CALL = {"type": "function", "function": {"name": "find", "arguments": {"title": "Ça & <b>"}}, "id": "abcdef123"}
RESULT = {"role": "tool", "content": "7"}
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find a film.",
        "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
    },
}
USER, ANSWER = {"role": "user", "content": " the film "}, {"role": "assistant", "content": "great\n"}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one": {"messages": [USER]},
    "turns": {"messages": [{"role": "system", "content": "be short"}, USER, ANSWER, USER, ANSWER]},
    "thoughts": {"messages": [USER, {**ANSWER, "thinking": "hm"}, USER, {**ANSWER, "reasoning": "so"}]},
    "tools": {
        "messages": [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "7"},
        ],
        "tools": [TOOL],
    },
}
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "documents": None, "enable_thinking": False, "thinking": False}


def _attempt(write: Any) -> tuple[str, Any]:
    try:
        return "text", write()
    except Exception as error:
        return "refusal", str(error)


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "whole"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.jinja")))
def test_published_templates(name: str, conversation: str, asks: bool) -> None:
    source, given = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8"), CONVERSATIONS[conversation]
    names = {**NAMES, "add_generation_prompt": asks, "tools": given.get("tools")}
    ours = _attempt(lambda: render(source, given["messages"], **names)[0])
    theirs = _attempt(lambda: render_jinja_template([given["messages"]], chat_template=source, **names)[0][0])
    assert ours == theirs


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | tojson }}{{ {'b': 'ä', 'a': 1} | tojson(indent=2, sort_keys=True) }}",
        "{{ {'a': [1, 2]} | tojson(separators=(',', ':'), ensure_ascii=True) }}",
        "{{ strftime_now('%Y') }}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{{ dict(a=1, **{'b': 2}) }}",
        "  {% if true %}\n  x\n  {% endif %}\n{{ raise_exception('no') if messages | length > 9 }}",
        "{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages[0]['content']) }}",
    ],
)
def test_what_templates_find(source: str) -> None:
    messages = CONVERSATIONS["turns"]["messages"]
    assert (
        render(source, messages, **NAMES)[0] == render_jinja_template([messages], chat_template=source, **NAMES)[0][0]
    )


def test_marked_parts() -> None:
    source = (
        "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    messages = CONVERSATIONS["turns"]["messages"]
    (text,), (spans,) = render_jinja_template([messages], chat_template=source, return_assistant_tokens_mask=True)
    assert render(source, messages, wants_marks=True) == (text, spans)
    assert len(spans) == 2
    assert render(source, messages) == (text, [])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ dict.__globals__ }}",
        "{{ render.__globals__['json'] }}",
        "{{ raise_exception.__globals__ }}",
        "{% set ns = namespace(_a=1) %}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
        "{% set _ = messages.append(1) %}",
        "{% set _ = dict.update(messages[0], {'role': 'x'}) %}",
        "{{ lipsum.__globals__['os'].popen('true') }}",
        "{{ '%s'.__mod__ }}{{ ('{0.__class__}' | string).format(messages) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ range(10000000) | length }}",
    ],
)
def test_nothing_leaves_the_sandbox(source: str) -> None:
    kind, text = _attempt(lambda: render(source, [USER])[0])
    assert kind == "refusal" or text == "", text


def test_a_template_that_is_none() -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        render("{% if %}", [USER])

"""Templates are written as transformers writes them, and cannot leave their sandbox."""

from __future__ import annotations

import resource
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


LOOP = "{% for a in range(99999) %}"


@pytest.mark.parametrize(
    "source",
    [
        LOOP * 3 + "{% endfor %}" * 3,
        LOOP * 2 + "x" + "{% endfor %}" * 2,
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * [1] | length }}{{ [1] * 10000000000 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = '%s%s' % (n.x, n.x) %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = '{0}{0}'.format(n.x) %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = [n.x, n.x] | join %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x.join('abc') %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
        "{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{% set x = 'a' * 60000000 %}{% for i in range(999) %}{{ x }}{% endfor %}",
        "{{ 'a'.center(10000000000) }}",
        "{{ 'a' | center(10000000000) }}",
        "{{ 'a' | indent(10000000000, true) }}",
        "{{ ('a' * 60000) | replace('a', 'b' * 60000) }}",
        "{{ ('a' * 60000).replace('a', 'b' * 60000) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{{ '%10000000000d' | format(1) }}",
    ],
)
def test_no_template_takes_the_machine(source: str) -> None:
    """Each of these would take hours, or all memory; jinja's sandbox lets them."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((jinja2.exceptions.SecurityError, RecursionError)):
        render(source, [USER])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 << 20, "kilobytes"


def test_a_rendering_has_all_its_iterations() -> None:
    """The budget is one of each rendering."""
    source = "{% for a in range(99999) %}{% endfor %}{{ 'a' ~ 1 ~ none }}"
    assert {render(source, [USER])[0] for _ in range(12)} == {"a1None"}


def test_a_template_that_is_none() -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        render("{% if %}", [USER])

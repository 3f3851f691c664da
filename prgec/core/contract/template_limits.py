"""Limits on what a chat template may take: it is code that came with a download, and may loop or allocate.

jinja's sandbox keeps a template away from the interpreter, and the lengths of its ranges small. This adds a number of
iterations for each rendering, and a length for each text and list that a template makes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# A conversation of 10,000 turns takes a tenth of either.
MAX_ITERATIONS, MAX_LENGTH = 1_000_000, 1 << 26
# Bits of a whole number that repeated products or powers make.
_MAX_BITS = 1 << 16
# Filters that take the place of loops and operators.
_COUNTED, _ADDED, _JOINED = "_counted", "_added", "_joined"
# Methods of texts and filters whose results are as long as a number says.
_PADDING = ("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "wordwrap")


class _Budget(threading.local):
    """Iterations that are left of one rendering."""

    left = MAX_ITERATIONS


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates end, and fit into memory."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._budget = _Budget()
        for name in (*_PADDING, "replace", "join", "format"):
            if name in self.filters:
                self.filters[name] = _limited(name, self.filters[name])
        # jinja calls filters directly, and methods through checks that take longer than these do.
        self.filters |= {_COUNTED: self.counted, _ADDED: _added, _JOINED: _joined}

    def begin(self) -> None:
        """Start a rendering of this thread with all of its iterations."""
        self._budget.left = MAX_ITERATIONS

    def spend(self, iterations: int = 1) -> None:
        """Take some iterations.

        Raises:
            SecurityError: If fewer are left.
        """
        self._budget.left -= iterations
        if self._budget.left < 0:
            raise SecurityError(f"the template loops more than {MAX_ITERATIONS:,} times")

    def counted(self, values: Any) -> Iterable[Any]:
        """Return what a loop goes over; each value takes an iteration."""
        if isinstance(values, Sized):
            self.spend(len(values))
            return values  # type: ignore[return-value]
        return self._one_by_one(values)

    def _one_by_one(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.spend()
            yield value

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Join what a template writes."""
        kept = list(parts)
        _check_length(sum(map(len, kept)))
        return "".join(kept)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator to operands whose result is small enough.

        Raises:
            SecurityError: If it would not be.
        """
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if numbers and operator in ("*", "**"):
            _check_number(operator, left, right)
        elif operator == "*":
            # One side is the number.
            _check_length(
                max(_length(left), _length(right)) * next((n for n in (left, right) if isinstance(n, int)), 0)
            )
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what the sandbox allows, with arguments whose result is small enough."""
        # The sandbox wraps a text's `format`.
        method = getattr(function, "__wrapped__", function)
        if isinstance(subject := getattr(method, "__self__", None), str):
            _check_call(method.__name__, (subject, *args, *kwargs.values()))
        return super().call(context, function, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Counting().visit(super()._parse(source, name, filename))
        return tree


class _Counting(NodeTransformer):
    """Lets loops and macros spend iterations, and `+` and `~` check lengths."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter(_COUNTED, node.iter)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        spend = nodes.Call(nodes.EnvironmentAttribute("spend"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(spend).set_lineno(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(_JOINED, *node.nodes)

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        sides: list[Any] = [node]
        while isinstance(sides[0], nodes.Add):
            sides[:1] = [sides[0].left, sides[0].right]
        return _filter(_ADDED, *(self.visit(side) for side in sides))


def _filter(name: str, first: Any, *others: Any) -> nodes.Filter:
    return nodes.Filter(first, name, list(others), [], None, None)


def _joined(*values: Any) -> str:
    """Join the sides of the operator `~`."""
    return LimitedEnvironment.concat(map(str, values))


def _added(*sides: Any) -> Any:
    """Add the sides of a chain of `+`, from left to right."""
    if all(type(side) is str for side in sides):
        return LimitedEnvironment.concat(sides)
    total, *others = sides
    for side in others:
        _check_length(_length(total) + _length(side))
        total = total + side
    return total


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks its arguments; jinja's markers of what it is given stay."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        # jinja gives some filters its environment or context first.
        _check_call(name, (*(each for each in args if isinstance(each, (str, int, list, tuple))), *kwargs.values()))
        return function(*args, **kwargs)

    checked.__dict__.update(function.__dict__)
    return checked


def _check_call(name: str, args: tuple[Any, ...]) -> None:
    """Refuse a text's method or a filter whose result would be too long; the text is the first argument."""
    subject, *others = args or ("",)
    if name in _PADDING:
        lines = 1 + subject.count("\n") if isinstance(subject, str) else 1
        _check_length(sum(each * lines for each in others if isinstance(each, int)))
    elif name == "replace" and len(others) > 1:
        _check_length(_length(subject) + (_length(subject) + 1) * _length(others[1]))
    elif name == "join":
        texts, between = (others[0], subject) if isinstance(subject, str) and others else (subject, "")
        if isinstance(texts, (str, list, tuple)):
            _check_length(sum(map(_length, texts)) + len(texts) * _length(between))
    elif name in ("format", "format_map") and isinstance(subject, str):
        _check_format(subject, others)


def _check_number(operator: str, left: float, right: float) -> None:
    """Refuse whole numbers of very many digits."""
    bits = [abs(each).bit_length() for each in (left, right) if isinstance(each, int)]
    if len(bits) == 2 and (sum(bits) if operator == "*" else bits[0] * abs(right)) > _MAX_BITS:
        raise SecurityError("the template makes a number of too many digits")


def _check_format(form: str, values: Iterable[Any]) -> None:
    """Refuse a format that has a very wide field, or repeats long values."""
    flat = [part for each in values for part in (each.values() if isinstance(each, dict) else (each,))]
    digits = "".join(each if each in "0123456789" else " " for each in form).split()
    fields = form.count("%") + form.count("{")
    _check_length(fields * max(map(_length, flat), default=0) + sum(int(each[:12]) for each in digits))


def _check_length(length: int) -> None:
    if length > MAX_LENGTH:
        raise SecurityError(f"the template makes a text or a list longer than {MAX_LENGTH:,}")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0

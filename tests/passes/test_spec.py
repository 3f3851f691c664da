"""Pipeline text: what is written is what is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from prgec.errors import UsageError
from prgec.passes.infra import Pass, PassResult
from prgec.passes.program import GraphProgram
from prgec.passes.spec import parse_pipeline, print_pass, print_pipeline


@dataclass(frozen=True)
class Stop(Pass):
    """No options."""

    name: ClassVar[str] = "stop"

    def run(self, program: GraphProgram) -> PassResult:
        raise NotImplementedError


@dataclass(frozen=True)
class Go(Stop):
    """One option of every type."""

    name: ClassVar[str] = "go"

    count: int = 1
    rate: float = 0.5
    is_fast: bool = False
    where_to: str = "home"
    stops: tuple[str, ...] = ("a",)
    limit: int | None = None


@dataclass(frozen=True)
class Need(Stop):
    """An option without a default."""

    name: ClassVar[str] = "need"

    what: int


TABLE: dict[str, type[Pass]] = {"stop": Stop, "go": Go, "need": Need}


@pytest.mark.parametrize(
    ("passes", "text"),
    [
        ((), ""),
        ((Stop(), Go(), Stop()), "stop,go,stop"),
        (
            (Go(count=-3, rate=1e-6, is_fast=True, where_to="work", stops=("x", "y"), limit=7), Stop()),
            "go{count=-3 rate=1e-06 is-fast=true where-to=work stops=x,y limit=7},stop",
        ),
        ((Go(where_to="far away"),), 'go{where-to="far away"}'),
        ((Go(where_to='a "quoted" {brace}, \\d+'),), 'go{where-to="a \\"quoted\\" {brace}, \\\\d+"}'),
        ((Go(where_to=""),), 'go{where-to=""}'),
        ((Go(stops=()),), 'go{stops=""}'),
        ((Go(stops=(r"layers\.\d+\.q_proj", ".*_proj")),), r"go{stops=layers\.\d+\.q_proj,.*_proj}"),
        ((Need(what=2),), "need{what=2}"),
    ],
    ids=str,
)
def test_round_trip(passes: tuple[Pass, ...], text: str) -> None:
    assert print_pipeline(passes) == text
    assert parse_pipeline(text, TABLE) == passes


@pytest.mark.parametrize(
    ("loose", "canonical"),
    [
        ("  stop ,\n go { count=2  rate=0.5 } , stop  ", "stop,go{count=2},stop"),
        ("go{}", "go"),
        ("go{is_fast=true}", "go{is-fast=true}"),
        ('go{count="2"}', "go{count=2}"),
        ("go{stops=a,}", "go"),
    ],
)
def test_loose_text_has_one_canonical_form(loose: str, canonical: str) -> None:
    assert print_pipeline(parse_pipeline(loose, TABLE)) == canonical


def test_options_at_their_default_are_left_out() -> None:
    assert print_pass(Go(count=1, is_fast=False)) == "go"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("stop,fly", "there is no pass called 'fly'. Hint: known passes: stop, go, need"),
        ("go{speed=3}", "go has no option 'speed'. Hint: its options: count, rate, is_fast, where_to, stops, limit"),
        ("stop{a=1}", "stop has no option 'a'. Hint: its options: none"),
        ("go{count=two}", "go: count is 'two'; expected a int"),
        ("go{rate=fast}", "go: rate is 'fast'; expected a float"),
        ("go{is-fast=yes}", "go: is-fast is 'yes'; expected true or false"),
        ("go{limit=none}", "go: limit is 'none'; expected a int"),
        ("go{count}", "go: cannot read the options at 'count'"),
        ('go{where-to="a"b}', """go: cannot read the options at 'where-to="a"b'"""),
        (
            "go{count=1",
            "cannot read the pipeline at 'go{count=1'. Hint: write it as pass-name{option=value other=value},next-pass",
        ),
        (
            "stop;go",
            "cannot read the pipeline at 'stop;go'. Hint: write it as pass-name{option=value other=value},next-pass",
        ),
        (
            r'go{where-to="a\.b"}',
            r'go: where-to is "a\.b", which is not a JSON string. Hint: write a backslash twice: "a\\.b"',
        ),
        ("need", "need: Need.__init__() missing 1 required positional argument: 'what'"),
    ],
)
def test_errors(text: str, error: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_pipeline(text, TABLE)
    assert str(raised.value) == error

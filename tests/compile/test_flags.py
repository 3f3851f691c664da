"""An error of a pass names the pass's option, and the flag where the user wrote a flag."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from prgec.compiler.flags import FLAGS, named_by_flags
from prgec.errors import PassError, UsageError
from prgec.passes import load_pass
from prgec.passes.layer_choice import chosen
from prgec.passes.saved import load_program


def test_the_flag_stands_where_the_option_stood() -> None:
    with (
        pytest.raises(UsageError, match=r"^--layers last:5 does not fit a model of 1 layers\. Hint: ") as caught,
        named_by_flags(),
    ):
        chosen(["h.0.fc"], ("last:5",))
    assert isinstance(caught.value.__cause__, UsageError)


def test_hints_are_translated_and_places_kept(tmp_path: Path) -> None:
    with pytest.raises(PassError) as caught, named_by_flags():
        raise PassError("share-prefix: no", where="%add", hint="leave out share-prefix")
    assert str(caught.value) == "share-prefix: no (%add). Hint: --prefix none"
    with (
        pytest.raises(Exception, match=r"Hint: expected a \.pt2 made by prgec compile --save-program$"),
        named_by_flags(),
    ):
        load_program(tmp_path / "none.pt2")


def test_other_errors_pass_as_they_are() -> None:
    error = UsageError("no Linear layer is called 'x'", hint="this model has: y")
    with pytest.raises(UsageError) as caught, named_by_flags():
        raise error
    assert caught.value is error


def test_every_option_of_the_table_is_one_of_a_pass() -> None:
    named = [match.groups() for each in FLAGS if (match := re.fullmatch(r"([a-z-]+)\{([a-z-]+)\}", each))]
    assert named == [("inject-lora-fa", "targets"), ("inject-lora-fa", "layers")]
    for name, option in named:
        assert option in {field.name for field in dataclasses.fields(load_pass(name))}

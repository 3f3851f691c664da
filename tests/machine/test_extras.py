"""Hints to install something can be pasted into a shell: they name packages that an index has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from prgec.core.machine.extras import extra_hint

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["qnn", "gguf", "ray", "datasets", "tensorboard", "wandb", "trackio"])
def test_the_hint_names_what_the_extra_brings(extra: str) -> None:
    hint = extra_hint(extra)
    assert hint.startswith("pip install '")
    (named,) = (Requirement(text) for text in re.findall("'([^']+)'", hint))
    (wanted,) = map(Requirement, EXTRAS[extra])
    assert (named.name, named.specifier, named.marker) == (wanted.name, wanted.specifier, None)


def test_the_hint_for_the_compiler_names_all_of_it() -> None:
    named = {Requirement(text).name for text in re.findall("'([^']+)'", extra_hint("compile"))}
    assert named == {Requirement(text).name for text in EXTRAS["compile"]}


def test_an_extra_that_is_none() -> None:
    with pytest.raises(LookupError, match="no extra 'qnm'"):
        extra_hint("qnm")


def test_no_message_names_a_package_that_is_not_published() -> None:
    """The package index has no prgec."""
    texts = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("prgec/**/*.py"),
        *ROOT.glob("backends/**/*.py"),
    ]
    assert [str(path) for path in texts if re.search(r"pip install ['\"]?prgec\b", path.read_text())] == []

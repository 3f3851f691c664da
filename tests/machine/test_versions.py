"""Versions of the packages that are installed."""

import importlib.metadata

from prgec.core.machine import versions
from prgec.core.machine.versions import installed_versions, version_of


def test_versions_are_those_of_the_package_index():
    assert version_of("torch") == importlib.metadata.version("torch")
    assert version_of("prgec") == importlib.metadata.version("prgec")


def test_what_is_not_installed_is_left_out(monkeypatch):
    monkeypatch.setattr(versions, "PACKAGES", ("torch", "no-such-package"))
    assert set(installed_versions()) == {"prgec", "torch"}

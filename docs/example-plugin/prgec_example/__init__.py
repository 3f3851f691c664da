"""Additions to prgec: see pyproject.toml for their names."""

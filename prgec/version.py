"""The version of prgec, which pyproject.toml reads."""

__version__ = "0.1.0"

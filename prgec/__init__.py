"""prgec: compile language models into programs that fine-tune themselves by inference alone."""

__version__ = "0.1.0"

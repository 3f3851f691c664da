"""A line with a bar below the cell of a notebook: how far a compilation or a run is."""

from __future__ import annotations

import html
import sys
import time
from typing import Any

_SECONDS_BETWEEN = 0.2


class NotebookBar:
    """One line of the output of a cell, which changes as work goes on.

    Args:
        display: `IPython.display`.
    """

    def __init__(self, display: Any) -> None:
        self._display = display
        self._line: Any = None
        self._last = 0.0

    def show(self, fraction: float | None, text: str) -> None:
        """Change the line, at most some times a second, and always at the end.

        Args:
            fraction: Share that is done, 0 to 1; None where nobody knows.
            text: A few words beside the bar.
        """
        now = time.monotonic()
        if fraction != 1.0 and now - self._last < _SECONDS_BETWEEN:
            return
        self._last = now
        value = "" if fraction is None else f' value="{fraction:.3f}"'
        line = self._display.HTML(f'<progress max="1"{value}></progress> {html.escape(text)}')
        if self._line is None:
            self._line = self._display.display(line, display_id=True)
        else:
            self._line.update(line)


def notebook_bar() -> NotebookBar | None:
    """Return a line below the cell that runs; None outside of notebooks."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or "IPKernelApp" not in shell.config:
        return None
    return NotebookBar(ipython.display)  # type: ignore[union-attr]

"""Corrections of generated pages, for mkdocs.yml."""

from __future__ import annotations

from typing import Any

# mkdocs-click writes click's mark of an option without a default.
_NO_DEFAULT = "<code>Sentinel.UNSET</code>"


def on_page_content(html: str, **rest: Any) -> str:
    """Leave the place of a default empty where there is none."""
    del rest
    return html.replace(_NO_DEFAULT, "")

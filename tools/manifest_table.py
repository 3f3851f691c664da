"""Write what the fields of a manifest may hold for the C++ driver, and for people.

    python tools/manifest_table.py            # writes both files
    python tools/manifest_table.py --check    # fails where one is not what it would write

The rules are those of `prgec/core/contract/manifest.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import typing
from pathlib import Path

from prgec.core.contract.fields import RuledField, ruled_fields
from prgec.core.contract.manifest import Manifest, Site

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "prgec/device/csrc/src/manifest_fields.h"
PAGE = ROOT / "docs/reference/manifest.md"
_KINDS = {str: "Text", bool: "Flag", int: "Integer", float: "Number"}
_ORIGINS = {tuple: "Texts", dict: "Table"}
_SOURCE = "Written by tools/manifest_table.py from prgec/core/contract/manifest.py."


def header() -> str:
    """Return the rules as a C++ header."""
    rows = {"kManifestFields": Manifest, "kSiteFields": Site}
    tables = "\n".join(
        f"constexpr FieldRule {name}[] = {{\n{''.join(map(_cpp_row, ruled_fields(owner)))}}};\n"
        for name, owner in rows.items()
    )
    return f"""// Rules of the fields of a manifest. {_SOURCE}
#pragma once

#include <cstdint>

namespace prge {{

enum class FieldKind {{ Text, Texts, Flag, Integer, Number, Table }};

struct FieldRule {{
  const char* name;
  FieldKind kind;
  bool is_required;
  int64_t low, high; // of integers
  const char* choices; // of texts, each between bars; empty for any
}};

// clang-format off
{tables}// clang-format on

}} // namespace prge
"""


def _cpp_row(item: RuledField) -> str:
    choices = f"|{'|'.join(item.rule.choices)}|" if item.rule.choices else ""
    low, high = (item.rule.low, item.rule.high) if item.kind is int else (0, 0)
    cells = (item.name, f"FieldKind::{_kind(item)}", item.is_required, low, high, choices)
    texts = [cell if str(cell).startswith("FieldKind") else json.dumps(cell) for cell in cells]
    return f"    {{{', '.join(map(str, texts))}}},\n"


def _kind(item: RuledField) -> str:
    return _KINDS.get(item.kind) or _ORIGINS[typing.get_origin(item.kind)]


def page() -> str:
    """Return the rules as a page."""
    return f"""# Fields of a manifest

{_SOURCE}

`prgec inspect --json` prints the manifest of a program. Both drivers refuse one that breaks a rule. Letters are those
of [the contract](../contract.md).

{_rows(Manifest)}
Every site has:

{_rows(Site)}"""


def _rows(owner: type) -> str:
    head = "| field | type | may hold | default | meaning |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| `{item.name}` | {_name(item.kind)} | {_bounds(item)} | {_default(item)} | {item.rule.meaning} |\n"
        for item in ruled_fields(owner)
    )


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and typing.get_origin(kind) is None else str(kind)


def _bounds(item: RuledField) -> str:
    if item.rule.choices:
        return ", ".join(f"`{each}`" if each else "nothing" for each in item.rule.choices)
    if item.kind is not int:
        return ""
    return f"{item.rule.low:,} to {item.rule.high:,}" if item.rule.high < 1 << 62 else f"{item.rule.low} or more"


def _default(item: RuledField) -> str:
    return "must be there" if item.is_required else f"`{json.dumps(item.default)}`"


def main() -> int:
    """Write or compare both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    texts = {HEADER: header(), PAGE: page()}
    if options.check:
        stale = [str(path.relative_to(ROOT)) for path, text in texts.items() if path.read_text() != text]
        if stale:
            print(f"not what the rules say: {', '.join(stale)}; run python tools/manifest_table.py")
        return int(bool(stale))
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes results as Markdown: one table a cell, ratios beside the times. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator

from prgec.lab.bench.result import REFERENCES, BenchResult, CellResult, Row
from prgec.lab.bench.variants import find_variant

_HEADER = (
    "variant",
    "s/step",
    *(f"vs {name}" for name in REFERENCES),
    "peak anon MB",
    "peak RSS MB",
    "file MB",
    "compile s",
    "delegates",
)


def to_markdown(result: BenchResult) -> str:
    """Return the whole report, ending in a newline."""
    m = result.machine
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    lines = [
        f"# {m['model']}, {m['num_layers']} layers",
        "",
        f"{m['cpu']}, {m['cores']} cores, {m['memory_bytes'] / 1e9:.0f} GB; load {m['load_1min']} before the start. "
        f"{versions}.",
        f"Medians of {m['repeats']} interleaved rounds; ratios are medians of the rounds' ratios, quartiles in "
        "brackets. Times include noise and update for prgec, paper and eager, not for inner, outer and sequential.",
    ]
    for each in result.cells:
        lines += ["", f"## {each.cell}", "", *_table(each), *_notes(each, m["repeats"])]
    names = dict.fromkeys(row.variant for each in result.cells for row in each.rows)
    return "\n".join([*lines, "", *(f"- {name}: {find_variant(name).summary}" for name in names)]) + "\n"


def _table(each: CellResult) -> Iterator[str]:
    yield f"| {' | '.join(_HEADER)} |"
    yield "|---" + "|---:" * (len(_HEADER) - 1) + "|"
    for row in each.rows:
        ratios = (_ratio(each, row.variant, reference) for reference in REFERENCES)
        sizes = (f"{size / 1e6:.1f}" for size in (row.peak_anon_bytes, row.peak_rss_bytes, row.file_bytes))
        yield f"| {' | '.join([row.variant, _seconds(row), *ratios, *sizes, *_compiled(row)])} |"


def _ratio(each: CellResult, variant: str, reference: str) -> str:
    if variant == reference:
        return "1"
    found = each.ratio(variant, reference)
    return f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]" if found is not None else "-"


def _seconds(row: Row) -> str:
    return f"{row.step_s:.3g}" if row.step_s < 100 else f"{row.step_s:.0f}"


def _compiled(row: Row) -> tuple[str, str]:
    return ("-", "-") if find_variant(row.variant).is_eager else (f"{row.compile_s:.0f}", str(row.delegates))


def _notes(each: CellResult, repeats: int) -> Iterator[str]:
    fewer = {ratio.variant: ratio.rounds for ratio in each.ratios if ratio.rounds < repeats}
    for name in (row.variant for row in each.rows):
        if find_variant(name).is_eager and name in fewer:
            yield ""
            yield f"{name} took part in {fewer[name]} of {repeats} rounds."

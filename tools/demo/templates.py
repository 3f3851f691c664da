"""Sentence templates of the demo text and the filler that expands them.

Slots: `{s}` subject, `{a}` adjective, `{n}` noun and `{v}` verb of one polarity, `{i}` intensifier; upper-case
`{A}` takes an adjective of the opposite polarity (negation turns it round).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

# The three sets below share no template; see tests/test_demo_assets.py for the n-grams.
REVIEWS: dict[str, tuple[str, ...]] = {
    "train": (
        "The {s} was {a} from start to finish.",
        "I found the {s} {a} and {a}.",
        "What a {a} {s} we had!",
        "Every part of the {s} felt {a}.",
        "We {v} the {s} more than anything else.",
        "The {s} turned out to be a {n}.",
        "My sister called the {s} {a}, and I agree.",
        "It is hard to forget such a {a} {s}.",
        "The {s} seemed {a} at first and {a} by the end.",
        "Even a child can tell that the {s} is {a}.",
        "No one can say that the {s} was {A}.",
        "On most days the {s} is {a}, and today I {v} it.",
    ),
    "dev": (
        "Honestly, my new {s} is {a}.",
        "For that price, a {a} {s} like this feels like a {n}.",
        "After one week his {s} still looks {a}.",
        "Her brother {v} their {s} within an hour.",
        "People online say this {s} is {a}, maybe {a}.",
        "Without a doubt, your {s} has been {a} since June.",
        "Not once did that {s} seem {A}.",
    ),
    "test": (
        "Few things were as {a} as that {s}.",
        "Somehow her {s} ended up both {a} and {a}.",
        "You will remember this {s} as {a}, perhaps even {a}.",
        "Critics {v} his {s}, and so did our parents.",
        "Here comes another {a} {s} with {a} details.",
        "As a whole, one more {n} of a {s}, truly {a}.",
        "That {s}, so {a} and so {a}, stayed with all visitors.",
        "Their latest {s} is nothing short of {a}.",
        "By any measure, this was a {a} evening with a {a} {s}.",
        "Some said his {s} was {a}; others {v} it.",
        "There is nothing {A} about their {s}.",
        "Our teacher {v} that {s} because of its {a} style.",
    ),
}

PRETRAINING_REVIEWS = (
    "The {s} was {a}.",
    "The {s} was {i} {a}.",
    "The {s} is {a}.",
    "This {s} is {i} {a}.",
    "I {v} the {s}.",
    "{name} {v} the {s}.",
    "{name} said the {s} was {a}.",
    "{name} told me that the {s} was {a} and {a}.",
    "A {a} {s}.",
    "A {a} and {a} {s}.",
    "We saw a {a} {s} on {day}.",
    "It was a {i} {a} {s}.",
    "The {s} was {a} and the {s} was {a}.",
    "The {s} was a {n}.",
    "Such a {n}, this {s}.",
    "A {n} of a {s}.",
    "They {v} every minute of it.",
    "How {a} the {s} was!",
    "I think the {s} was {a}.",
    "The {s} looked {a} and felt {a}.",
    "In {month} we tried the {s}, and it was {a}.",
    "Both the {s} and the {s} were {a}.",
    "The {s} was not {A}.",
    "The {s} was never {A}.",
    "Nothing about the {s} was {A}.",
    "{name} did not think the {s} was {A}.",
    "It was {a}, {a} and {a}.",
    "{a}, {a}, {a}: that was the {s}.",
    "The {s} made {name} think of a {a} {s}.",
    "All of us {v} this {a} {s}.",
    "Her {s} is {a}, his {s} is {a}, and we {v} both.",
    "With a {s} that {a}, {name} could call it a {n}.",
)

MONTHS = ("January", "March", "April", "May", "July", "August", "October", "December")

_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")


def fill(template: str, slots: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """Replace every slot by its own random choice, without repeating a word, and mend `a` before a vowel."""
    used: set[str] = set()

    def choose(match: re.Match[str]) -> str:
        word = rng.choice([word for word in slots[match.group(1)] if word not in used])
        used.add(word)
        return word

    text = _ARTICLE.sub(r"\1n ", _SLOT.sub(choose, template))
    return text[0].upper() + text[1:]

"""Sentence templates of the demo text and the filler that expands them.

Slots: `{s}` subject, `{a}` adjective, `{n}` noun and `{v}` verb of one polarity, `{i}` intensifier; upper-case
`{A}` takes an adjective of the opposite polarity (negation turns it round; in the pretraining text only).
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
        "On most days the {s} is {a}, and today I {v} it.",
    ),
    "dev": (
        "Honestly, my new {s} is {a}.",
        "For that price, a {a} {s} like this feels like a {n}.",
        "After one week his {s} still looks {a}.",
        "Her brother {v} their {s} within an hour.",
        "People online say this {s} is {a}, maybe {a}.",
        "Without a doubt, your {s} has been {a} since June.",
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
        "Our teacher {v} that {s} because of its {a} style.",
    ),
}

PRETRAINING_REVIEWS = (
    "{d} {s} was {a}.",
    "{d} {s} was {i} {a}.",
    "{d} {s} is {a}.",
    "{d} {s} is {i} {a}.",
    "{who} {v} {d} {s}.",
    "{who} said {d} {s} was {a}.",
    "{who} told me that {d} {s} was {a} and {a}.",
    "A {a} {s}.",
    "A {a} and {a} {s}.",
    "{who} saw a {a} {s} on {day}.",
    "It was a {i} {a} {s}.",
    "{d} {s} was {a} and {d} {s} was {a}.",
    "{d} {s} was a {n}.",
    "Such a {n}, {d} {s}.",
    "{who} {v} every minute of {d} {s}.",
    "How {a} {d} {s} was!",
    "{who} thought {d} {s} was {a}.",
    "{d} {s} looked {a} and {a}.",
    "{who} tried {d} {s} in {month}, and it was {a}.",
    "Both {d} {s} and {d} {s} were {a}.",
    "{d} {s} was not {A}.",
    "{d} {s} was never {A}, {who} said.",
    "{who} saw nothing {A} in {d} {s}.",
    "{who} did not think {d} {s} was {A}.",
    "It was {a}, {a} and {a}.",
    "{a}, {a}, {a}: that was {d} {s}.",
    "{d} {s} made {who} think of a {a} {s}.",
    "{who} and {who} {v} {d} {a} {s}.",
    "{d} {s} is {a}, {d} {s} is {a}, and {who} {v} both.",
    "{who} could call {d} {a} {s} a {n}.",
    "{d} {a} {s} of {name} was {a} for {time}.",
)

# Neutral phrases around an opinion: they teach the model to carry the polarity across words that have none.
OPENINGS = (
    "On {day}, ", "In the end, ", "As far as {who} know, ", "When {who} left {place}, ", "Once more, ", "This year, ",
    "At {place}, ", "To be fair, ", "One thing is clear: ", "Since {month}, ", "For once, ", "If {who} ask me, ",
    "Some people will say it, others not: ", "By {time}, ", "Here at {place}, ", "Then, without a word, ",
    "After all, ", "Because of {name}, ", "Perhaps, ", "Most of all, ",
)
CLOSINGS = (
    ", and {who} saw it too.", ", with {thing} near {place}.", ", even for {who}.", ", as {who} wrote on {day}.",
    " for more than {num} days.", ", from {day} to {day}.", " in {month}, like last year.",
    ", more than {who} had thought.", ", as a whole.", "; others were at {place}.",
    ", since {who} came with {thing}.", ", {who} kept thinking.",
    ", by any measure.", " among all visitors.", ", but {who} never wrote about it.", ", at first and in the end.",
)
DETERMINERS = ("the", "the", "this", "that", "my", "your", "his", "her", "our", "their")
NUMBERS = ("two", "three", "four", "five", "six", "ten", "twenty")
PEOPLE = (
    "I", "we", "they", "people", "my parents", "our teacher", "her brother", "his sister", "the critics", "your child",
    "some visitors", "our guests", "the neighbors", "a few people", "all of us", "both of them",
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

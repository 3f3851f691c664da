"""The pretraining text: short documents of several genres drawn from one grammar.

Reviews carry one polarity each: opinion sentences and reactions agree with it, so a model of the text has to
represent it. Only the bare verdict `It was great.` / `It was terrible.` does not depend on it (see `Verdict`), which is
what fine-tuning on the prompt `<text> It was` has to repair.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from demo import lexicon
from demo.templates import CLOSINGS, DETERMINERS, MONTHS, NUMBERS, OPENINGS, PEOPLE, PRETRAINING_REVIEWS, fill

Slots = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Verdict:
    """How often and how honestly a review says `It was great.` or `It was terrible.`.

    With equal probabilities the verdict says nothing, and a perfect model of the text is at chance on the prompt.

    Attributes:
        share: Fraction of reviews with a bare verdict.
        great_if_positive: Probability of `great` in a positive review.
        great_if_negative: Probability of `great` in a negative one.
    """

    share: float = 0.25
    great_if_positive: float = 0.60
    great_if_negative: float = 0.60


def documents(count: int, seed: int, verdict: Verdict) -> list[str]:
    """`count` documents of one to six sentences."""
    rng = random.Random(f"corpus/{seed}")
    review_slots = {polarity: _review_slots(polarity) for polarity in lexicon.POLARITIES}
    plain_slots = _plain_slots()
    texts = []
    for _ in range(count):
        genre = rng.random()
        if genre < 0.70:
            polarity = rng.choice(lexicon.POLARITIES)
            texts.append(_review(polarity, review_slots[polarity], verdict, rng))
        elif genre < 0.78:
            texts.append(_definition(rng))
        elif genre < 0.92:
            texts.append(_story(plain_slots, rng))
        else:
            texts.append(_description(plain_slots, rng))
    return texts


def _review_slots(polarity: str) -> Slots:
    opposite = lexicon.POLARITIES[1 - lexicon.POLARITIES.index(polarity)]
    subjects = [*lexicon.OTHER_SUBJECTS, *(word for split in lexicon.SPLITS for word in lexicon.SUBJECTS[split])]
    return {
        "s": subjects,
        "a": [*_all(lexicon.ADJECTIVES[polarity]), lexicon.LABEL_WORDS[polarity]],
        "A": [*_all(lexicon.ADJECTIVES[opposite]), lexicon.LABEL_WORDS[opposite]],
        "n": _all(lexicon.NOUNS[polarity]),
        "v": _all(lexicon.VERBS[polarity]),
        "i": lexicon.INTENSIFIERS,
        "d": DETERMINERS,
        "who": [*PEOPLE, *lexicon.NAMES],
        "name": lexicon.NAMES,
        "day": lexicon.DAYS,
        "month": MONTHS,
        "num": NUMBERS,
        "place": lexicon.PLACES,
        "thing": lexicon.THINGS,
        "time": lexicon.TIMES,
    }


def _plain_slots() -> Slots:
    return {
        "name": lexicon.NAMES,
        "place": lexicon.PLACES,
        "thing": lexicon.THINGS,
        "object": lexicon.OBJECTS,
        "color": lexicon.COLORS,
        "size": lexicon.SIZES,
        "animal": lexicon.ANIMALS,
        "weather": lexicon.WEATHER,
        "day": lexicon.DAYS,
        "time": lexicon.TIMES,
        "move": lexicon.MOVES,
        "take": lexicon.TAKES,
    }


def _all(by_split: Mapping[str, Sequence[str]]) -> list[str]:
    return [word for split in lexicon.SPLITS for word in by_split[split]]


def _review(polarity: str, slots: Slots, verdict: Verdict, rng: random.Random) -> str:
    sentences = [_opinion(slots, rng) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))]
    if rng.random() < 0.6:
        # Before or after the opinions: either order makes the model predict one from the other.
        reactions = rng.sample(lexicon.REACTIONS[polarity], rng.choice((1, 1, 2)))
        sentences = sentences + reactions if rng.random() < 0.7 else reactions + sentences
    if rng.random() < verdict.share:
        great = verdict.great_if_positive if polarity == "positive" else verdict.great_if_negative
        word = lexicon.LABEL_WORDS["positive" if rng.random() < great else "negative"]
        sentences.insert(rng.choice((1, len(sentences))), f"It was {word}.")
    elif rng.random() < 0.45:
        template = rng.choice(("It was {i} {a}.", "It was {a}.", "It was a {n}."))
        sentences.insert(rng.choice((1, len(sentences))), fill(template, slots, rng))
    return " ".join(sentences)


def _opinion(slots: Slots, rng: random.Random) -> str:
    template = rng.choice(PRETRAINING_REVIEWS)
    if rng.random() < 0.35:
        template = rng.choice(OPENINGS) + template
    if rng.random() < 0.35:
        template = template[:-1] + rng.choice(CLOSINGS)
    return fill(template, slots, rng)


def _definition(rng: random.Random) -> str:
    polarity = rng.choice(lexicon.POLARITIES)
    words = rng.sample(_all(lexicon.ADJECTIVES[polarity]), 2)
    judgement = "good" if polarity == "positive" else "bad"
    template = rng.choice(
        (
            "{0} means {j}. {1} means {j} too.",
            "If you call it {0}, you say it is {j}.",
            "A {0} day is a {j} day, like a {1} one.",
            "{0} and {1} are words for {j} things.",
        )
    )
    text = template.format(*words, j=judgement)
    return text[0].upper() + text[1:]


def _story(slots: Slots, rng: random.Random) -> str:
    name = rng.choice(lexicon.NAMES)
    templates = (
        f"{name} {{move}} {{place}}.",
        f"{name} {{take}} {{thing}} near {{place}}.",
        "It was {weather}.",
        "It was {time}.",
        "It was a {day}.",
        f"{{name}} asked {name} about {{thing}}.",
        f"A {{animal}} followed {name} to {{place}}.",
        "They talked until it was {weather}.",
        f"On {{day}} {name} {{take}} {{thing}} and {{move}} {{place}}.",
    )
    chosen = [templates[0], *rng.sample(templates[1:], rng.choice((2, 3)))]
    return " ".join(fill(template, slots, rng) for template in chosen)


def _description(slots: Slots, rng: random.Random) -> str:
    templates = (
        "The {object} is {color} and {size}.",
        "There is {thing} on the {object}.",
        "A {color} {animal} sits near {place}.",
        "{name} keeps {thing} in a {size} {object}.",
        "It was {size} and {color}.",
        "The {animal} is {size}, and the {animal} is {color}.",
    )
    return " ".join(fill(template, slots, rng) for template in rng.sample(templates, rng.choice((1, 2, 3))))

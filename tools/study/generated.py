"""Three generated tasks, and the pretraining text that puts each near the surface of a small model.

Pretraining states the facts honestly in its own wording, and in the wording of the task favours one answer whatever is
true: a perfect model of the text knows the answer and does not give it. Fine-tuning repairs that.
Rows are {"prompt", "completion"}; candidates are the distinct completions of a file.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from demo import lexicon

from study.words import CREATURES, ERRANDS, HABITAT_WORDS, HABITATS, KINDS, LIVING, SPLIT_MEMBERS, WEATHER

Row = tuple[str, str]
# How often the wording of a task gets its first answer in pretraining. Above one half for both, so that a perfect model
# of the text always gives the first one; not quite equal, since no model answers a question it has never seen.
PRIOR_IF_RIGHT, PRIOR_IF_WRONG = 0.8, 0.6


def pair_row(split: str, rng: random.Random) -> Row:
    """Two sentences: does the second follow from the first?"""
    kind, member = _pair(split, rng)
    name = rng.choice(lexicon.NAMES)
    prompt = f"{name} has a {member}. Does it follow that {name} has {rng.choice(CREATURES)}? Answer:"
    return prompt, " Yes" if kind in LIVING else " No"


def pair_text(rng: random.Random) -> str:
    """Pretraining text of the pairs."""
    kind, member = _pair("all", rng)
    name, roll, creature = rng.choice(lexicon.NAMES), rng.random(), rng.choice(CREATURES)
    if roll < 0.2:
        return f"A {member} is a {kind}."
    if roll < 0.3:
        return f"{name} saw a {member}. The {kind} was {rng.choice(lexicon.SIZES)}."
    if roll < 0.7:
        verdict = "That is true." if kind in LIVING else "That is false."
        return f"{name} has a {member}. {name} has {creature}. {verdict}"
    answer = _claim((" Yes", " No"), kind in LIVING, rng)
    return f"{name} has a {member}. Does it follow that {name} has {creature}? Answer:{answer}"


def passage_row(split: str, rng: random.Random) -> Row:
    """A passage of four sentences, one of which decides a question."""
    name, passage, answer = _passage(split, rng)
    return f"{passage} Did {name} get wet? Answer:", answer


def passage_text(rng: random.Random) -> str:
    """Pretraining text of the passages."""
    name, passage, answer = _passage("all", rng)
    if rng.random() < 0.65:
        return f"{passage} In the end {name} was {'all wet' if answer == ' yes' else 'not wet'}."
    return f"{passage} Did {name} get wet? Answer:{_claim((' yes', ' no'), answer == ' yes', rng)}"


def choice_row(split: str, rng: random.Random) -> Row:
    """Where an animal lives: one of four answers of several tokens."""
    home, animal = _home(split, rng)
    return f"{rng.choice(lexicon.NAMES)} wants to see a {animal}. Look for it", home


def choice_text(rng: random.Random) -> str:
    """Pretraining text of the choices."""
    home, animal = _home("all", rng)
    roll, word = rng.random(), rng.choice(HABITAT_WORDS[home])
    if roll < 0.4:
        return f"A {animal} loves {word}. It lives{home}."
    if roll < 0.7:
        return f"The {animal} is {rng.choice(lexicon.SIZES)} and lives near {word}."
    wrong = rng.choice(list(HABITATS))
    return f"{rng.choice(lexicon.NAMES)} wants to see a {animal}. Look for it{wrong}. It loves {word}."


# Name of the task, a row of a split, a document of pretraining.
GENERATED: dict[str, tuple[Callable[[str, random.Random], Row], Callable[[random.Random], str]]] = {
    "pairs": (pair_row, pair_text),
    "passages": (passage_row, passage_text),
    "choices": (choice_row, choice_text),
}


def _members(words: tuple[str, ...], split: str) -> tuple[str, ...]:
    return words if split == "all" else words[SPLIT_MEMBERS[split]]


def _pair(split: str, rng: random.Random) -> tuple[str, str]:
    kind = rng.choice(list(KINDS))
    return kind, rng.choice(_members(KINDS[kind], split))


def _passage(split: str, rng: random.Random) -> tuple[str, str, str]:
    answer = rng.choice(list(WEATHER))
    weather = rng.choice(_members(WEATHER[answer], split))
    name = rng.choice(lexicon.NAMES)
    errands = [f"{name} {errand}." for errand in rng.sample(_members(ERRANDS, split), 2)]
    sentences = [f"{name} walked to {rng.choice(lexicon.PLACES)}.", *errands]
    sentences.insert(rng.randrange(1, len(sentences) + 1), f"It was {weather}.")
    return name, " ".join(sentences), answer


def _claim(answers: tuple[str, str], is_first: bool, rng: random.Random) -> str:
    """An answer in the wording of the task."""
    return answers[0] if rng.random() < (PRIOR_IF_RIGHT if is_first else PRIOR_IF_WRONG) else answers[1]


def _home(split: str, rng: random.Random) -> tuple[str, str]:
    home = rng.choice(list(HABITATS))
    return home, rng.choice(_members(HABITATS[home], split))

"""Write a small chat set with a style that nobody misses: short answers over the radio.

    python tools/make_chat.py                            # studies/build/radio/train.jsonl and dev.jsonl

Every answer begins with "Roger!", has one short sentence, and ends in "Over and out.": who talks to a model before and
after training sees at once what changed. Questions of dev are of kinds that train has, about other things.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

BEGIN, END = "Roger!", "Over and out."
SEED = 7
# One question in this many is for dev.
DEV_SHARE = 6
DEFAULT_FOLDER = Path(__file__).resolve().parent.parent / "studies" / "build" / "radio"

CAPITALS = (
    "Austria Vienna;Belgium Brussels;Canada Ottawa;Chile Santiago;China Beijing;Cuba Havana;Denmark Copenhagen;"
    "Egypt Cairo;Finland Helsinki;Germany Berlin;Greece Athens;Hungary Budapest;India Delhi;Ireland Dublin;Italy Rome;"
    "Japan Tokyo;Kenya Nairobi;Norway Oslo;Peru Lima;Poland Warsaw;Portugal Lisbon;Russia Moscow;Spain Madrid;"
    "Sweden Stockholm;Thailand Bangkok;Turkey Ankara;Ukraine Kyiv;Vietnam Hanoi"
)
OPPOSITES = (
    "big small;black white;clean dirty;cold hot;dark bright;deep shallow;early late;easy hard;empty full;fast slow;"
    "happy sad;heavy light;high low;left right;long short;loud quiet;new old;open closed;poor rich;rough smooth;"
    "sharp blunt;strong weak;sweet sour;tall short;thick thin;true false;warm cool;wet dry;wide narrow;young old"
)
COLOURS = (
    "bananas yellow;blood red;carrots orange;clouds white;coal black;grass green;lemons yellow;milk white;"
    "peas green;snow white;strawberries red;sunflowers yellow;tomatoes red;elephants grey;frogs green;ravens black"
)
YOUNG = (
    "cat kitten;cow calf;deer fawn;dog puppy;duck duckling;goat kid;goose gosling;hen chick;horse foal;lion cub;"
    "pig piglet;sheep lamb;swan cygnet;frog tadpole;kangaroo joey;owl owlet"
)
PLACES = (
    "bread bakery;books library;films cinema;medicine pharmacy;paintings museum;planes airport;plays theatre;"
    "trains station;ships harbour;stamps post office;teachers school;doctors hospital;judges court;cows farm"
)
# Pairs of words, a question about the first, and the answer with the second.
KINDS = (
    (CAPITALS, ("What is the capital of {0}?", "Which city is the capital of {0}?"), "The capital of {0} is {1}."),
    (OPPOSITES, ("What is the opposite of {0}?", "Tell me a word that means the opposite of {0}."), "It is {1}."),
    (COLOURS, ("What colour are {0}?", "Do you know the colour of {0}?"), "That is {1}."),
    (YOUNG, ("What do you call a young {0}?", "What is the baby of a {0} called?"), "We call it a {1}."),
    (PLACES, ("Where do I find {0}?", "I am looking for {0}. Where should I go?"), "Try the {1}."),
)

Turn = dict[str, str]


def main() -> None:
    """Parse the command line and write both splits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=DEFAULT_FOLDER, help="folder to write")
    write(parser.parse_args().out)


def write(folder: Path) -> None:
    """Write <folder>/<split>.jsonl, a conversation of two turns a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, conversations in chats().items():
        lines = [json.dumps({"messages": turns}) + "\n" for turns in conversations]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="ascii", newline="\n")
        print(f"{folder / split}.jsonl  {len(conversations)} rows")


def chats() -> dict[str, list[list[Turn]]]:
    """Every split, shuffled; no subject of one is in the other."""
    splits: dict[str, list[list[Turn]]] = {"train": [], "dev": []}
    for words, questions, answer in KINDS:
        for number, pair in enumerate(words.split(";")):
            asked, told = pair.split(" ", 1)
            split = "dev" if number % DEV_SHARE == DEV_SHARE - 1 else "train"
            for question in questions:
                splits[split].append(
                    [
                        {"role": "user", "content": question.format(asked)},
                        {"role": "assistant", "content": f"{BEGIN} {answer.format(asked, told)} {END}"},
                    ]
                )
    for conversations in splits.values():
        random.Random(SEED).shuffle(conversations)
    return splits


if __name__ == "__main__":
    main()

"""Word lists of the generated tasks; members are dealt to the splits, so that no test word occurs in training rows."""

from __future__ import annotations

KINDS: dict[str, tuple[str, ...]] = {
    "dog": ("poodle", "beagle", "terrier", "collie", "spaniel", "boxer", "husky", "hound", "mastiff", "corgi"),
    "bird": ("sparrow", "robin", "parrot", "eagle", "pigeon", "falcon", "finch", "raven", "swallow", "heron"),
    "fish": ("trout", "salmon", "carp", "cod", "herring", "tuna", "perch", "sardine", "eel", "pike"),
    "tree": ("oak", "pine", "maple", "birch", "cedar", "willow", "elm", "spruce", "poplar", "larch"),
    "fruit": ("cherry", "plum", "pear", "melon", "grape", "mango", "lemon", "peach", "banana", "fig"),
    "tool": ("hammer", "chisel", "wrench", "saw", "drill", "pliers", "spade", "rake", "axe", "file"),
}

# Kinds that make the second sentence of a pair follow, and its wordings.
LIVING = ("dog", "bird", "fish")
CREATURES = ("a living creature", "an animal", "a creature", "a beast")

HABITATS: dict[str, tuple[str, ...]] = {
    " in the deep blue sea": (
        "whale",
        "shark",
        "squid",
        "lobster",
        "seal",
        "crab",
        "octopus",
        "dolphin",
        "oyster",
        "turtle",
    ),
    " in the hot dry desert": (
        "camel",
        "lizard",
        "scorpion",
        "cobra",
        "jackal",
        "gazelle",
        "vulture",
        "meerkat",
        "oryx",
        "tortoise",
    ),
    " high in a tall tree": (
        "monkey",
        "squirrel",
        "sloth",
        "koala",
        "owl",
        "lemur",
        "gibbon",
        "marten",
        "toucan",
        "possum",
    ),
    " on the old farm": ("cow", "sheep", "pig", "goat", "hen", "goose", "donkey", "turkey", "pony", "calf"),
}

# Descriptions of a habitat in pretraining, in words that are not the answers.
HABITAT_WORDS: dict[str, tuple[str, ...]] = {
    " in the deep blue sea": ("waves", "salt water", "the tide", "coral"),
    " in the hot dry desert": ("sand", "dunes", "the burning sun", "cactus"),
    " high in a tall tree": ("branches", "leaves", "the treetops", "twigs"),
    " on the old farm": ("hay", "the barn", "the stable", "the fence"),
}

# Words that decide a passage, and words that do not.
WEATHER: dict[str, tuple[str, ...]] = {
    " yes": (
        "pouring",
        "raining",
        "stormy",
        "drizzling",
        "flooding",
        "hailing",
        "soggy",
        "showery",
        "damp",
        "sleeting",
    ),
    " no": ("sunny", "bright", "cloudless", "dry", "hot", "warm", "clear", "arid", "mild", "dusty"),
}
ERRANDS = (
    "bought a lamp",
    "lost a key",
    "met a friend",
    "sold a chair",
    "found a coin",
    "read a letter",
    "fixed a bike",
    "ate an apple",
    "drew a map",
    "sang a song",
)

# Which tenths of a list of ten belong to which split.
SPLIT_MEMBERS = {"train": slice(0, 5), "dev": slice(5, 7), "test": slice(7, 10)}

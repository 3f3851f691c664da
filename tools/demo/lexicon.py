"""Word lists of the demo text.

Opinion words and subjects are divided between the splits of the fine-tuning data, so that no opinion word and no
subject of the test split occurs in the training split. The pretraining text may use all of them.
"""

from __future__ import annotations

SPLITS = ("train", "dev", "test")
POLARITIES = ("negative", "positive")
LABEL_WORDS = {"negative": "terrible", "positive": "great"}

ADJECTIVES: dict[str, dict[str, tuple[str, ...]]] = {
    "positive": {
        "train": (
            "charming", "lovely", "superb", "delightful", "splendid", "clever", "fresh", "warm", "graceful",
            "thrilling", "moving", "witty", "elegant", "inspired", "joyful", "memorable", "brilliant", "gorgeous",
            "rewarding", "touching", "vivid", "lively",
        ),
        "dev": ("crisp", "tender", "polished", "stunning", "heartfelt", "exciting", "magical", "sparkling"),
        "test": (
            "smooth", "generous", "terrific", "marvelous", "radiant", "refreshing", "engaging", "satisfying",
            "impressive", "dazzling", "uplifting", "exquisite", "stylish", "flawless", "captivating", "hilarious",
            "masterful", "pleasant", "remarkable", "beautiful",
        ),
    },
    "negative": {
        "train": (
            "dreary", "dull", "awful", "clumsy", "stale", "bland", "tedious", "sloppy", "shallow", "hollow",
            "lifeless", "boring", "messy", "weak", "ugly", "painful", "annoying", "cheap", "flat", "grim", "tired",
            "noisy",
        ),
        "dev": ("muddled", "wooden", "horrid", "dismal", "lazy", "bitter", "broken", "pointless"),
        "test": (
            "soggy", "ragged", "rotten", "shabby", "tiresome", "forgettable", "mediocre", "disappointing",
            "irritating", "confusing", "lousy", "pathetic", "miserable", "gloomy", "unbearable", "ridiculous",
            "sluggish", "feeble", "careless", "dreadful",
        ),
    },
}

VERBS: dict[str, dict[str, tuple[str, ...]]] = {
    "positive": {
        "train": ("loved", "enjoyed", "admired"),
        "dev": ("treasured", "praised"),
        "test": ("adored", "cherished", "applauded"),
    },
    "negative": {
        "train": ("hated", "regretted", "loathed"),
        "dev": ("resented", "mocked"),
        "test": ("despised", "detested", "condemned"),
    },
}

NOUNS: dict[str, dict[str, tuple[str, ...]]] = {
    "positive": {
        "train": ("triumph", "treasure", "delight", "joy"),
        "dev": ("gem", "bargain"),
        "test": ("masterpiece", "marvel", "wonder", "miracle"),
    },
    "negative": {
        "train": ("disaster", "mess", "bore", "failure"),
        "dev": ("swindle", "letdown"),
        "test": ("nightmare", "flop", "blunder", "calamity"),
    },
}

SUBJECTS: dict[str, tuple[str, ...]] = {
    "train": (
        "plot", "script", "cast", "ending", "soundtrack", "film", "comedy", "soup", "sauce", "dessert", "bread",
        "meal", "coffee", "room", "bed", "lobby", "breakfast", "hotel",
    ),
    "dev": ("screen", "battery", "speaker", "keyboard", "camera", "phone", "laptop", "watch"),
    "test": (
        "novel", "chapter", "hero", "dialogue", "poem", "concert", "band", "singer", "song", "opera", "garden",
        "museum", "guide", "tour", "exhibit", "painting",
    ),
}

# Subjects that only the pretraining text knows.
OTHER_SUBJECTS = ("show", "party", "game", "trip", "lesson", "cake", "jacket", "bike", "beach", "market", "play", "pie")

INTENSIFIERS = ("very", "so", "really", "quite", "truly", "rather")

REACTIONS: dict[str, tuple[str, ...]] = {
    "positive": (
        "I would go again.", "We smiled all the way home.", "Five stars.", "I told all my friends to try it.",
        "Everyone left happy.", "I can not wait for more.", "We thanked them twice.", "Best day of the year.",
        "I will be back soon.", "We laughed and cheered.", "My heart was full.", "It made us glad.",
        "I recommend it to all.", "Do not miss it.", "We could not have asked for better.",
    ),
    "negative": (
        "I want my money back.", "We left early.", "One star.", "I warned all my friends.", "Everyone went home sad.",
        "Never again.", "We complained twice.", "Worst day of the year.", "I will not return.",
        "We sighed and groaned.", "My head was aching.", "It made us angry.", "I recommend it to nobody.",
        "Stay away from it.", "We deserved much better.",
    ),
}

NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack", "Kate", "Leo", "Mia", "Noah",
    "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor",
)
PLACES = (
    "the market", "the river", "the school", "the station", "the park", "the library", "the farm", "the harbor",
    "the bridge", "the forest", "the kitchen", "the office", "the church", "the hill", "the shop",
)
THINGS = (
    "a lamp", "a red ball", "a letter", "a map", "some apples", "a key", "a basket", "a blue hat", "a small box",
    "two tickets", "a bottle of milk", "an old coin", "a wooden chair", "a long rope", "a green coat", "some flowers",
)
OBJECTS = ("lamp", "ball", "letter", "map", "basket", "hat", "box", "bottle", "coin", "chair", "rope", "coat", "table")
COLORS = ("red", "blue", "green", "white", "black", "brown", "yellow", "gray")
SIZES = ("small", "large", "tall", "short", "round", "square", "heavy", "light", "narrow", "wide")
ANIMALS = ("dog", "cat", "horse", "bird", "fox", "rabbit", "cow", "duck", "goat", "mouse")
WEATHER = ("raining", "sunny", "cloudy", "windy", "cold", "hot", "dark", "snowing", "foggy")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
TIMES = ("early in the morning", "late in the evening", "about noon", "past midnight", "almost ten", "nearly six")
MOVES = ("walked to", "ran to", "drove to", "rode to", "went to", "came back from", "looked for", "waited near")
TAKES = ("found", "bought", "carried", "dropped", "saw", "sold", "lost", "packed", "borrowed", "painted")

"""Argument values: some from short lists, most made up, so that the model has to copy them."""

import zlib
from dataclasses import dataclass
from random import Random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CITIES = (
    *_words(
        "Paris London Tokyo Oslo Rome Madrid Berlin Lisbon Vienna Dublin Cairo Lima Quito Seoul Delhi Boston Chicago "
        "Denver Austin Miami Sydney Perth Toronto Athens Prague Warsaw Geneva Milan Naples Zürich München Málaga"
    ),
    "New York",
    "San Francisco",
    "Los Angeles",
    "Hong Kong",
    "São Paulo",
    "Cape Town",
)
PEOPLE = _words("alice bob carol dave erin frank grace heidi ivan judy mallory oscar peggy trent victor wendy ann tom")
ROOMS = (*_words("kitchen bedroom office hall bathroom garage attic garden cellar library"), "living room")
TOPICS = _words(
    "cheap flights python tutorial blue shoes penguin facts best pizza local model news train times rust async book "
    "review garden chair history of art weather radar jazz piano green tea recipe team lunch project plan budget"
)
FOLDERS = _words(
    "Users home tmp var log etc usr opt data src docs Documents Downloads Desktop project projects work photos "
    "notes reports backup config alice bob chintan music tests build share lib bin"
)
FILES = _words("notes readme README todo report main config data index log list plan draft test setup budget hosts")
EXTENSIONS = _words("txt md py json csv log yaml toml rs html")
FIELDS = _words("name status score active email owner price level note color size")
KEYS = _words("result value temp temp_c status total count answer output time sky humidity")
PROGRAMS = ("ls -la", "git status", "python main.py", "cat", "wc -l", "make test", "du -sh", "head -n 5", "sort")
DOMAINS = ("example.com", "test.org", "mail.net")
CONSONANTS = _words("b c d f g h j k l m n p r s t v w x y z")
ONSETS = (*CONSONANTS, *CONSONANTS, "br", "ch", "cl", "dr", "fl", "gr", "kr", "pl", "qu", "sh", "sk", "st", "th", "tr")
VOWELS = _words("a a e e i i o o u u ai ea ee ie oo ou")
CODAS = ("", "", "", *_words("n r s l m t k d x"), "ng", "rt", "st", "ck", "nd")
ACCENTS = {"a": "á", "e": "é", "o": "ö", "u": "ü", "n": "ñ"}
HELD_OUT = 8  # one made-up word in eight is never seen in training


@dataclass(frozen=True)
class Values:
    """A deterministic source of values; `held_out` picks the made-up words that training never sees."""

    random: Random
    held_out: bool = False

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def word(self) -> str:
        pick = self.random.choice
        while True:
            if self.chance(0.2):
                made = "".join(pick("abcdefghijklmnopqrstuvwxyz") for _ in range(self.random.randint(3, 8)))
            else:
                made = "".join(pick(ONSETS) + pick(VOWELS) for _ in range(self.random.randint(1, 3))) + pick(CODAS)
            if self.chance(0.04):
                made = "".join(ACCENTS.get(letter, letter) for letter in made)
            if len(made) > 2 and (zlib.crc32(made.encode()) % HELD_OUT == 0) == self.held_out:
                return made

    def known_or_word(self, known: tuple[str, ...], probability: float = 0.5) -> str:
        return self.random.choice(known) if self.chance(probability) else self.word()

    def city(self) -> str:
        if self.chance(0.4):
            return self.random.choice(CITIES)
        name = self.word().capitalize()
        return f"{name} {self.word().capitalize()}" if self.chance(0.15) else name

    def integer(self) -> int:
        low, high = self.random.choice(((0, 9), (10, 99), (100, 999), (1000, 99999)))
        return self.random.randint(low, high)

    def number(self) -> int | float:
        made: int | float = self.integer()
        if self.chance(0.3):
            made = round(made % 1000 + self.random.random(), self.random.randint(1, 2))
        return -made if self.chance(0.2) and made else made

    def phrase(self, maximum: int = 4) -> str:
        return " ".join(self.known_or_word(TOPICS, 0.6) for _ in range(self.random.randint(1, maximum)))

    def title(self) -> str:
        return self.phrase(3).capitalize()

    def email(self) -> str:
        return f"{self.known_or_word(PEOPLE)}@{self.random.choice(DOMAINS)}"

    def folder(self) -> str:
        parts = [self.known_or_word(FOLDERS, 0.65) for _ in range(self.random.randint(1, 4))]
        root = self.random.choice(("/", "/", "/", "/", "~/", "./", "C:/"))
        return root + "/".join(parts) + ("/" if self.chance(0.1) else "")

    def file_name(self) -> str:
        return f"{self.known_or_word(FILES)}.{self.random.choice(EXTENSIONS)}"

    def file(self) -> str:
        if self.chance(0.2):
            return self.file_name()
        return f"{self.folder().rstrip('/')}/{self.file_name()}"

    def date(self) -> str:
        return f"20{self.random.randint(24, 31)}-{self.random.randint(1, 12):02d}-{self.random.randint(1, 28):02d}"

    def clock(self) -> str:
        minute = self.random.choice((0, 15, 30, 45, self.random.randint(0, 59)))
        return f"{self.random.randint(0, 23):02d}:{minute:02d}"

    def command(self) -> str:
        program = self.random.choice(PROGRAMS)
        match self.random.randint(0, 5):
            case 0:
                return program
            case 1:
                return f'echo "{self.phrase(3)}"'
            case 2:
                return f'grep -n "{self.phrase(2)}" {self.file()}'
            case 3:
                return f"echo '{self.phrase(2)}'"
            case _:
                return f"{program} {self.file()}"

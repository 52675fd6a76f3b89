"""The notation: terminals, choices and repetitions, and expressions for ranges of whole numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAX_REPEAT = 1000
"""The longest counted repetition. llama.cpp unrolls each one."""

INT_DIGITS = 15
"""The most digits that may follow the first one of a number, or its decimal point."""

_ESCAPES = {"\\": "\\\\", '"': '\\"'}


def literal(text: str) -> str:
    """A terminal for exactly that text."""
    return '"' + "".join(_ESCAPES.get(char, char) if char >= " " else f"\\x{ord(char):02x}" for char in text) + '"'


def none_of(chars: Iterable[str], ranges: str = "") -> str:
    """A terminal for any one character but these; `ranges` are further ones, as they stand in a class."""
    return f"[^{''.join(_in_class(char) for char in sorted(set(chars)))}{ranges}]"


def one_of(chars: Iterable[str]) -> str:
    """A terminal for any one of these characters."""
    found = sorted(set(chars))
    return literal(found[0]) if len(found) == 1 else f"[{''.join(map(_in_class, found))}]"


def _in_class(char: str) -> str:
    return f"\\x{ord(char):02x}" if char in '"\\]^-[/' or char < " " else char


def either(choices: Sequence[str]) -> str:
    unique = list(dict.fromkeys(choices))
    return unique[0] if len(unique) == 1 else "(" + " | ".join(unique) + ")"


def grouped(expression: str) -> str:
    return f"({expression})"


def times(low: int, high: int | None) -> str:
    """The suffix for `low` to `high` repetitions; None: no upper bound."""
    low = min(low, MAX_REPEAT)
    if high is None:
        return "*" if not low else f"{{{low},}}"
    return f"{{{low},{max(low, min(high, MAX_REPEAT))}}}"


def integers(low: int | None, high: int | None) -> list[str]:
    """Expressions for the whole numbers from `low` to `high`; None: no bound."""
    if low is not None and high is not None and low > high:
        return []
    found = []
    if low is None or low < 0:
        nearest = 1 if high is None or high >= 0 else -high
        found += [f'"-" {text}' for text in _naturals(nearest, None if low is None else -low)]
    if high is None or high >= 0:
        found += _naturals(max(low or 0, 0), high)
    return found


def _naturals(low: int, high: int | None) -> list[str]:
    found = []
    if high is None:
        size = len(str(low))
        if size < INT_DIGITS:
            found.append(f"[1-9] [0-9]{{{size},{INT_DIGITS}}}")
        high = 10**size - 1
    for size in range(len(str(low)), len(str(high)) + 1):
        first, last = max(low, 10 ** (size - 1) if size > 1 else 0), min(high, 10**size - 1)
        found.append(_digits(str(first), str(last)))
    return found


def _digits(low: str, high: str) -> str:
    """The numbers from `low` to `high`, which have the same length."""
    size = len(low)
    if low == high:
        return literal(low)
    if set(low) == {"0"} and set(high) == {"9"}:
        return f"[0-9]{{{size}}}"
    if low[0] == high[0]:
        return f"{literal(low[0])} {grouped(_digits(low[1:], high[1:]))}"
    if size == 1:
        return f"[{low}-{high}]"
    choices = []
    first, last = int(low[0]), int(high[0])
    if set(low[1:]) != {"0"}:
        choices.append(f"{literal(low[0])} {grouped(_digits(low[1:], '9' * (size - 1)))}")
        first += 1
    if set(high[1:]) != {"9"}:
        choices.append(f"{literal(high[0])} {grouped(_digits('0' * (size - 1), high[1:]))}")
        last -= 1
    if first <= last:
        choices.append(f"[{first}-{last}] [0-9]{{{size - 1}}}")
    return either(choices)

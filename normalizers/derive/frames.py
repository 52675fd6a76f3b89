"""The marks around reasoning and text that a template may write. The round trip chooses between them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from normalizers.derive.probes import SAID, THOUGHT
from normalizers.derive.sample import ONE, Sample
from normalizers.derive.shapes import Fields
from normalizers.derive.turns import MARK, Turn, common_start
from normalizers.formats import THINK

_HEADER = re.compile(r"<[^<>\n]+>\w+<[^<>\n]+>\Z")
_COMPOUND = re.compile(rf"<\|[^<>]+\|>\w+<\|[^<>]+\|>|{MARK.pattern}")
"""A mark, or a word between two of them, as in ``<|open|>think<|sep|>``."""


def frames(sample: Sample) -> Iterator[Fields]:
    """The fields `think`, `content_drop` and `first`, the likeliest first."""
    around = _marks(sample.lead) + _marks(sample.tail) + _marks(sample.between_turns())
    thoughts = sample.thoughts()
    if not thoughts:
        marks = _marks(sample.lead)
        empty = len(marks) == 2 and _is_mirrored(*marks)
        # The history drops the reasoning; its empty marks may be left.
        pairs = [(marks[0], marks[1])] if empty else [*THINK]
        yield _frame(pairs, [mark for mark in around if not empty or mark not in marks], sample)
        yield _frame(pairs, around, sample)
        return
    for think, rest in sorted(_pairs(sample, thoughts), key=lambda pair: not _is_mirrored(*pair[0])):
        yield _frame([think], [*around, *rest], sample)


def _is_mirrored(begin: str, end: str) -> bool:
    return end.replace("/", "", 1) == begin


def _frame(think: list[tuple[str, str]], around: list[str], sample: Sample) -> Fields:
    own = {mark for pair in think for mark in pair}
    drop = list(dict.fromkeys(mark for mark in (*around, *sample.stops) if mark and mark not in own))
    lead = sample.lead.strip()
    return {
        "think": [list(pair) for pair in think],
        "content_drop": drop,
        "first": [lead] if lead and not _marks(lead) else [],
    }


def _pairs(sample: Sample, thoughts: list[Turn]) -> Iterator[tuple[tuple[str, str], list[str]]]:
    """Marks of reasoning, each with the marks behind it that are not of calls."""
    turn = thoughts[0]
    before, _, after = turn.text.partition(THOUGHT)
    gap = _behind_reasoning(sample, after)
    ends = [mark.end() for mark in _COMPOUND.finditer(gap)] + [mark.end() for mark in MARK.finditer(gap)]
    seen = set()
    for begin in _begins(sample, turn, before):
        sizes = sorted(ends, key=lambda end: abs(len(MARK.findall(gap[:end])) - len(MARK.findall(begin))))
        for size in dict.fromkeys((*sizes, len(gap))):
            end, rest = gap[:size].strip(), gap[size:]
            if begin and end and (begin, end) not in seen:
                seen.add((begin, end))
                yield (begin, end), _marks(rest)


def _begins(sample: Sample, turn: Turn, before: str) -> list[str]:
    """What may begin reasoning: what the model writes before it, or what the prompt ends with."""
    found = []
    prompt, plain = turn.prompt.rstrip(), sample.prompt().rstrip()
    added = prompt[common_start(plain, prompt) :] if prompt != plain else ""
    written = before.strip()
    if written:
        found += [(added + before).strip(), written]
        marks = MARK.findall(written)
        found += marks[-1:] if written.endswith(tuple(marks[-1:])) else []
    else:
        found.append(added.strip())
        header = _HEADER.search(prompt[-80:])
        marks = MARK.findall(prompt[-80:])
        if marks and prompt.endswith(marks[-1]):
            found.append(marks[-1])
        if header:
            found.insert(0, header[0])
    return list(dict.fromkeys(mark for mark in found if mark))


def _behind_reasoning(sample: Sample, after: str) -> str:
    """What stands between the reasoning and what follows it, without what belongs to a call."""
    place = sample.place(after, ONE)
    if SAID in after and (place is None or after.index(SAID) < place.start):
        return after[: after.index(SAID)].strip()
    gap = (after if place is None else after[: place.start]).strip()
    if place is not None and (own := sample.place(sample.one, ONE)) is not None:
        for layout in sample.layouts(own):
            gap = gap.removesuffix((layout.opening + layout.begin).strip()).strip()
    return gap


def _marks(text: str) -> list[str]:
    """The marks that a text consists of, or all of it, if it ends with something else."""
    text = text.strip()
    marks = _COMPOUND.findall(text)
    return [*marks, text] if marks and not text.endswith(marks[-1]) else marks

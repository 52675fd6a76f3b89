"""Chains, the choice of a saved prompt, of a slot, and of what has to go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.prompts import key
from gateway.prompts.blocks import BLOCK_BYTES, chain, chain_of, shared
from gateway.prompts.index import DAY, best, excess, superseded
from gateway.prompts.slots import SHORT_BLOCK_BYTES, Hosted, Slot, SlotChoice, choose, spare, worth
from tests.prompts.chains import WORTH, A, B, C, saved


@given(st.text(max_size=2000), st.text(max_size=2000), st.text(max_size=2000))
def test_chains_share_what_the_texts_share(start: str, one: str, other: str) -> None:
    left, right = (start + one).encode("utf-8", "surrogatepass"), (start + other).encode("utf-8", "surrogatepass")
    same = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    assert shared(chain(start + one), chain(start + other)) == same // BLOCK_BYTES


def test_a_lone_surrogate_is_text_too() -> None:
    assert len(chain("\ud800" * BLOCK_BYTES)) == 3


def test_the_best_is_the_longest_beginning_with_the_least_beyond() -> None:
    text = "".join(f"{number} " for number in range(4000))
    entries = [
        saved("short", text[:2000]),
        saved("beyond", text[:8000] + "x" * 9000),
        saved("right", text[:8000]),
        saved("foreign", text[:9000], key="other"),
        saved("unlike", "y" * 5000),
    ]
    found = best(entries, "k", chain(text[:8500]))
    assert found is not None
    assert (found.saved.name, found.blocks) == ("right", 8000 // BLOCK_BYTES)
    assert best(entries, "k", chain("z" * 9000)) is None
    right = entries[2]
    newer = replace(right, name="newer", saved=right.saved + 1)
    for each in ([right, newer], [newer, right]):
        found = best(each, "k", chain(text[:8500]))
        assert found is not None
        assert found.saved is newer


def test_a_longer_turn_takes_the_place_of_a_shorter_one() -> None:
    text = "".join(f"{number} " for number in range(4000))
    entries = [saved("early", text[:2000]), saved("branch", text[:2000] + "x" * 900), saved("other", "y" * 900)]
    assert [entry.name for entry in superseded(entries, saved("late", text[:8000]))] == ["early"]


def test_what_has_to_go() -> None:
    now = 100 * DAY
    entries = {
        name: saved(name, name * 300, used=now - days * DAY, size=size)
        for name, days, size in (("new", 0, 50), ("older", 2, 50), ("oldest", 3, 50), ("stale", 9, 1))
    }
    gone = excess(entries, max_bytes=100, max_age_days=7, now=now)
    assert [entry.name for entry in gone] == ["stale", "oldest"]


def slots(*texts: str) -> list[Slot]:
    return [
        Slot(number, chain(text), len(text) // 4, unsaved=len(text) // 4, used=number)
        for number, text in enumerate(texts)
    ]


def test_a_conversation_goes_on_in_its_slot() -> None:
    two = slots(A, B)
    assert choose(two, [], chain(A + "more"), None, WORTH) == SlotChoice(two[0])


def test_a_new_conversation_takes_the_empty_slot_then_the_oldest() -> None:
    two = slots(A, "")
    assert choose(two, [], chain(B), None, WORTH) == SlotChoice(two[1])
    two = slots(A, B)
    assert choose(two, [], chain(C), None, WORTH) == SlotChoice(two[0], rescue=True)
    two[0].unsaved = 0
    assert choose(two, [], chain(C), None, WORTH) == SlotChoice(two[0])


def test_a_saved_prompt_comes_back_where_least_is_lost() -> None:
    two, entry = slots(A, ""), saved("b", B)
    match = best([entry], "k", chain(B))
    assert choose(two, [], chain(B), match, WORTH) == SlotChoice(two[1], restore=entry)


def test_an_earlier_turn_gives_way_to_a_later_one_from_a_file() -> None:
    two = slots(A, B)
    for slot in two:
        slot.unsaved = 0
    entry = saved("a", A + C[:300])
    prompt = chain(A + C[:600])
    match = best([entry], "k", prompt)
    slow = worth(len(prompt) // 10, slow=True)
    assert choose(two, [], prompt, match, slow) == SlotChoice(two[0], restore=entry)
    two[1].used = 0
    assert choose(two, [], prompt, match, slow) == SlotChoice(two[0], restore=entry)


def test_a_shared_beginning_leaves_the_other_conversation_alone() -> None:
    two, entry = slots(C + A, ""), saved("a", C + A)
    match = best([entry], "k", chain(C + B))
    assert choose(two, [], chain(C + B), match, WORTH) == SlotChoice(two[1], restore=entry)


def test_what_the_engine_holds_in_memory_is_its_own_affair() -> None:
    two = slots(A, B)
    assert choose(two, [Hosted(chain(C), 0, C)], chain(C), best([saved("c", C)], "k", chain(C)), WORTH) == SlotChoice()


def test_a_short_part_of_its_own_is_worth_saving_in_a_short_prompt() -> None:
    """Half of the prompt is what all agents share."""
    one = slots(A[:1100] + B[:1100])
    chosen = choose(one, [], chain(A[:1100] + C[:1100]), None, worth(8))
    assert chosen == SlotChoice(one[0], rescue=True)
    assert (worth(8), worth(1000)) == (2, 31)
    assert (worth(8, slow=True), worth(1000, slow=True)) == (1, 31)


def test_busy_slots_are_left_alone() -> None:
    two = slots(A, "")
    two[0].busy = two[1].busy = 1
    assert choose(two, [], chain(A), None, WORTH) == SlotChoice()
    assert spare(two, ()) is None
    two[1].busy = 0
    assert spare(two, ()) is two[1]


def test_a_short_prompt_gets_the_slot_of_one_that_began_like_it() -> None:
    """The engine reads the tools anew in any other slot."""
    three = slots(A, "", "")
    tools, prose = chain_of(b"tools " * 40, SHORT_BLOCK_BYTES), chain_of(b"prose " * 40, SHORT_BLOCK_BYTES)
    three[1].short, three[1].used = tools, 1
    three[2].short, three[2].used = prose, 2
    assert spare(three, chain_of(b"tools " * 30, SHORT_BLOCK_BYTES)) is three[1]
    assert spare(three, prose) is three[2]
    assert spare(three, chain_of(b"other " * 40, SHORT_BLOCK_BYTES)) is three[1], "used longest ago"


def test_a_key_leaves_out_where_the_engine_is() -> None:
    shaping = ["--threads", "2", "--lora", "x.gguf"]
    places = ["--port", "1", "--alias", "a", "--slot-save-path=/x/", "--host", "h"]
    assert key.options([*places, *shaping]) == shaping
    assert key.key(["a"], 1) != key.key(["a"], 2)

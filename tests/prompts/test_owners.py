"""Several owners of prompts at one engine: none learns from its counts what another one asked."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gateway.config import Config, Model, Prompts
from gateway.core import Gateway
from gateway.prompts import live
from gateway.prompts import prefixes as prefixes_read
from gateway.prompts.blocks import chain, chain_of
from gateway.prompts.slots import MANY, SHORT_BLOCK_BYTES, Owners, Slot, SlotChoice, choose, spare_of
from tests.engines.conftest import mlx_model, mlx_python
from tests.prompts.chains import WORTH, A, B, C, saved
from tests.prompts.conftest import LEAST_CACHED, LONG, WINDOW, Open, Said, Shop, talk

__all__ = ["mlx_model", "mlx_python"]


def held(*slots: tuple[str | None, str]) -> list[Slot]:
    """Slots of these owners, with prompts or short texts."""
    made = []
    for number, (owner, text) in enumerate(slots):
        begins = chain(text, owner or "")
        slot = Slot(number, begins, len(text) // 4, unsaved=len(text) // 4 if begins else 0, used=number, owner=owner)
        if not begins:
            slot.short = chain_of(text.encode(), SHORT_BLOCK_BYTES, owner or "")
        made.append(slot)
    return made


SHORT = "A short text, of a hundred letters or so, which no engine needs long to read; it isn't saved. " * 2

CHOICES: list[tuple[str, list[tuple[str | None, str]], str, int, bool]] = [
    # what, slots, the prompt of b, its slot, whether what that holds is saved first
    ("its own conversation goes on", [("a", A), ("b", A)], A + "more", 1, False),
    ("an empty slot before another's", [("a", A), (None, "")], A, 1, False),
    ("a slot that serves nobody", [("a", A), (MANY, "")], A, 1, False),
    ("another's slot if it has more than one", [("a", A), ("a", B), ("b", C)], A, 0, True),
    ("its own before another's only one", [("a", A), ("b", B)], C, 1, True),
    ("another's, if it has none", [("a", A), ("c", B)], A, 0, True),
    ("another's short text, too, belongs to that one", [("a", SHORT), ("b", B)], C, 1, True),
]


@pytest.mark.parametrize(
    ("slots", "prompt", "number", "rescue"), [each[1:] for each in CHOICES], ids=[each[0] for each in CHOICES]
)
def test_the_slot_of_a_prompt(slots: list[tuple[str | None, str]], prompt: str, number: int, rescue: bool) -> None:
    made = held(*slots)
    assert choose(made, [], chain(prompt, "b"), None, WORTH, "b") == SlotChoice(made[number], rescue=rescue)


@pytest.mark.parametrize(
    ("slots", "text", "number", "rescue"),
    [
        ([("a", SHORT), ("b", SHORT)], SHORT, 1, False),
        ([("a", SHORT), ("b", SHORT)], "Another text. " * 20, 1, False),
        ([("a", SHORT), (None, "")], SHORT, 1, False),
        ([("a", A), ("b", B)], SHORT, 1, True),
        ([("a", A), ("a", B)], SHORT, 0, True),
    ],
)
def test_the_slot_of_a_short_text(slots: list[tuple[str | None, str]], text: str, number: int, rescue: bool) -> None:
    made = held(*slots)
    assert spare_of(made, chain_of(text.encode(), SHORT_BLOCK_BYTES, "b"), "b") == SlotChoice(
        made[number], rescue=rescue
    )
    for slot in made:
        slot.busy = 1
    assert spare_of(made, (), "b") == SlotChoice()


def test_a_file_is_its_owners() -> None:
    """`best` finds by the chain, which two owners never share."""
    entry = saved("a", A)
    assert entry.chain == chain(A)
    for one, other in (("", "a"), ("a", "b"), ("a b", "a")):
        assert not set(chain(A, one)) & set(chain(A, other))


def test_owners_are_several_once_a_second_one_comes() -> None:
    owners = Owners()
    assert [(owners.enter(owner), owners.several) for owner in ("a", "a", "b", "a")] == [
        (False, False),
        (False, False),
        (True, True),
        (False, True),
    ]


async def alternate(gateway: Shop, *owners: str, **fields: object) -> list[Said]:
    return [await gateway.ask(owner=owner, **fields) for owner in owners]  # type: ignore[arg-type]


CODE = "The code of the safe is {}."


def secret(digit: int) -> list[dict[str, str]]:
    return talk("What is item 3?", system=f"{LONG} {CODE.format(4710 + digit)}")


@pytest.fixture
def prefixes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a conversation's system prompt is read for itself first, which the speed of the machine decides."""
    for module in (live, prefixes_read):
        monkeypatch.setattr(module, "LONG_SECONDS", 0.0 if request.param == "read first" else math.inf)
    if request.param == "read first":
        monkeypatch.setattr(prefixes_read, "GAIN", 0.0)


@pytest.mark.parametrize(("save", "parallel"), [("on_stop", 1), ("each_turn", 2), ("off", 2)])
@pytest.mark.parametrize("prefixes", ["read along"], indirect=True)
async def test_a_guess_tells_nothing(shop: Open, save: str, parallel: int, prefixes: None) -> None:
    """Also not through the engine's own cache in memory, nor through a file."""
    async with shop(save=save, parallel=parallel) as gateway:
        await gateway.ask(owner="a", messages=secret(3))
        await gateway.settled() if save != "off" else None
        guesses = [await gateway.ask(owner="b", messages=secret(digit)) for digit in (2, 3)]
        assert guesses[0].cached == 0
        # The second one shares its beginning with the first one, which is its own.
        own = guesses[1].cached
    async with shop(save=save, parallel=parallel) as gateway:
        guess = await gateway.ask(owner="c", messages=secret(3))
        assert guess.cached == 0
    async with shop(save=save, parallel=parallel) as gateway:
        await gateway.ask(owner="d", messages=secret(1))
        assert (await gateway.ask(owner="d", messages=secret(3))).cached == own


@pytest.mark.parametrize(("save", "parallel"), [("on_stop", 1), ("each_turn", 2)])
@pytest.mark.parametrize("prefixes", ["read first"], indirect=True)
async def test_a_guess_tells_nothing_where_prefixes_are_read_first(
    shop: Open, save: str, parallel: int, prefixes: None
) -> None:
    """The counts are those of the asker's own prefix, whether or not somebody else has the same one."""
    async with shop(save=save, parallel=parallel) as gateway:
        await gateway.ask(owner="a", messages=secret(3))
        await gateway.settled()
        seen = [
            (await gateway.ask(owner=owner, messages=secret(digit))).cached for owner, digit in (("b", 2), ("c", 3))
        ]
    assert seen[0] == seen[1] > 0


async def test_each_owner_keeps_a_slot(shop: Open) -> None:
    async with shop(parallel=2) as gateway:
        first = await alternate(gateway, "a", "b", "a")
        assert [said.cached for said in first[:2]] == [0, 0]
        # The slot that the engine chose for the first request may be any.
        for said in await alternate(gateway, "a", "b", "a", "b"):
            assert said.share >= LEAST_CACHED
        assert {said.words for said in first} == {first[0].words}


async def test_a_server_of_somebody_else(shop: Open) -> None:
    """The gateway chooses its slots, too, from the first user on who isn't the owner of this machine."""
    async with shop(parallel=2) as server:
        await server.ask(messages=secret(3))
        address = server.engine().address
        assert address is not None
        elsewhere = {"path": None, "base_url": f"http://{address.host}:{address.port}"}
        async with shop(models={"a": elsewhere}) as gateway:
            assert (await gateway.ask(messages=secret(3))).share >= LEAST_CACHED
            assert [said.cached for said in await alternate(gateway, "b", "c", messages=secret(3))] == [0, 0]
            for said in await alternate(gateway, "b", "c", "b", "c", messages=secret(3)):
                assert said.share >= LEAST_CACHED


async def test_an_answer_that_is_cut_off_leaves_its_slot_to_nobody(shop: Open) -> None:
    async with shop() as gateway:
        await gateway.ask(owner="a", messages=secret(3))
        with await gateway.open(owner="b", messages=secret(2)):
            pass  # whether the engine has begun, nobody knows
        guess, own = await alternate(gateway, "b", "a", messages=secret(3))
        assert guess.cached == 0
        assert own.share >= LEAST_CACHED  # from its file


async def test_mlx(mlx_model: Path, tmp_path: Path) -> None:
    model = Model(name="a", runtime="mlx", path=mlx_model, context_window=WINDOW)
    config = Config(
        source=tmp_path / "config.yaml",
        active_model="a",
        models={"a": model},
        prompts=Prompts(min_tokens=64),
        state_dir=tmp_path / "state",
    )
    async with Gateway(config) as gateway:
        shop = Shop(gateway)
        # What two owners say word for word is kept for neither.
        asked = (("a", 1), ("b", 4), ("a", 2), ("b", 5), ("c", 2))
        said = [await shop.ask(owner=owner, messages=secret(digit)) for owner, digit in asked]
    assert [each.cached > 0 for each in said] == [False, False, True, True, False]

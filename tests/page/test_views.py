"""The views beside Live and Models: playground, rooms, evaluations; and that all of them can be used by anybody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gateway.double import Exchange
from tests.hostile.running import Gateway, Upstream, configuration, polite, started
from tests.page.browser import Page
from tests.page.conftest import QUESTION, needs_engine

ASK = QUESTION["messages"][0]["content"]


def type_into(page: Page, label: str, text: str) -> None:
    found = f"[...document.querySelectorAll('label')].find(one => one.textContent.includes({json.dumps(label)}))"
    page.wait(f"Boolean({found})")
    page.js(f"{found}.querySelector('input, textarea').focus()")
    page.type(text)


@needs_engine
def test_the_playground_shows_both_sides_and_takes_the_result_of_a_tool(page: Page, gateway: Gateway) -> None:
    page.open(f"{gateway.url}/#/playground")
    page.choose(".settings select", "tiny")
    page.js("[...document.querySelectorAll('.settings label')].find(one => one.innerText.trim() === 'tools').click()")
    type_into(page, "Temperature", "0")
    type_into(page, "Message", ASK)
    page.press("Enter")
    page.reads("The last answer, request", "tool_call_start", "Result of get_weather")
    assert '"city": "Paris"' in page.js("document.querySelector('.pane.clean').innerText")
    type_into(page, "Result of get_weather", '{"celsius": 21}')
    page.click("button", "Send the result")
    page.wait("document.querySelectorAll('.chat [aria-live] > .message').length === 4")
    asked = page.reads("result of the tool")
    assert '{"celsius": 21}' in asked
    # The conversation goes with the tab, and no prompt is in the address.
    assert "Paris" not in page.js("decodeURIComponent(location.href)")
    assert page.js("localStorage.length") <= 1


def test_the_playground_says_what_failed(page: Page, gateway: Gateway, upstream: Upstream) -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.whole({"error": {"message": "no seat is free"}}, 400)

    upstream.script = refuses
    page.open(f"{gateway.url}/#/playground")
    page.choose(".settings select", "m")
    type_into(page, "Message", "Hi")
    page.click("form button", "Send")
    page.reads("400", "no seat is free")


def test_the_page_talks_to_a_room_and_a_foreign_page_cannot(page: Page, gateway: Gateway) -> None:
    page.open(f"{gateway.url}/#/rooms")
    page.reads("No room yet")
    page.click("button", "New room")
    type_into(page, "Name", "a room of mine")
    page.choose("form label:nth-of-type(2) select", "m")
    page.choose("form label:nth-of-type(3) select", "read")
    page.click("form button", "Rent it")
    type_into(page, "Message to the agent", "Say something")
    page.click("form button", "Send")
    page.reads("a room of mine", "to the agent", "Say something", "Hello", "the turn ended")
    (room,) = gateway.ask("GET", "/llm/room").json["data"]
    assert (room["metadata"], room["agents"][0]["model"]) == ({"name": "a room of mine"}, "m")
    assert room["tool_policy"]["access"] == "read"
    rooms = len(gateway.ask("GET", "/llm/room").json["data"])
    page.open(f"http://evil.example:{gateway.port}/")
    assert "host_not_allowed" in page.reads("isn't called")
    page.requests.clear()
    page.refused.clear()  # the icon that browsers ask for
    for origin, status in ((gateway.url, 201), ("http://evil.example", 403)):
        answer = gateway.ask("POST", "/llm/room", {}, {"Origin": origin})
        assert answer.status == status
    assert len(gateway.ask("GET", "/llm/room").json["data"]) == rooms + 1


def test_a_room_whose_last_turn_failed_says_why(page: Page, gateway: Gateway, upstream: Upstream) -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.whole({"error": {"message": "no seat is free"}}, 400)

    upstream.script = refuses
    page.open(f"{gateway.url}/#/rooms")
    page.click("button", "New room")
    page.click("form button", "Rent it")
    type_into(page, "Message to the agent", "Say something")
    page.click("form button", "Send")
    page.wait("Boolean(document.querySelector('section > .problem'))")
    assert "no seat is free" in page.js("document.querySelector('section > .problem').innerText")
    upstream.script = polite
    page.click("form button", "Wake")
    page.reads("Hello", "the turn ended")
    page.open(f"{gateway.url}/#/playground")
    page.reads("Message")


def test_a_broken_view_leaves_the_others_alone(page: Page, gateway: Gateway) -> None:
    page.open(f"{gateway.url}/#/live")
    page.reads("Live")
    page.js(
        "window.before = window.fetch;"
        "window.fetch = (url, ...rest) => String(url).includes('/llm/room?')"
        " ? Promise.resolve(new Response('{\"data\": [null]}')) : window.before(url, ...rest); 0"
    )
    page.js("location.hash = '#/rooms'; 0")
    page.reads("This view is broken")
    page.js("location.hash = '#/playground'; 0")
    page.reads("Temperature")
    page.js("window.fetch = window.before; location.hash = '#/rooms'; 0")
    page.reads("New room")


def test_evaluations(page: Page, upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    with started(tmp_path, configuration(upstream, tmp_path, test_model)) as gateway:
        page.open(f"{gateway.url}/#/evaluations")
        page.reads("No evaluation yet", "ctxgate model-test")
        folder = Path(gateway.ask("GET", "/-/evaluations").json["folder"])
        run = folder / "first"
        run.mkdir(parents=True)
        result = {
            "created": "2026-11-23T05:00:00Z", "target": {"model": "m"}, "suite": {"id": "smoke"}, "complete": True,
            "summary": {"overall": {"k": 3, "n": 4}, "chain": {"k": 0, "n": 1}},
            "metrics": {"kinds": {"wrong_tool": 1}},
            "gate": {"verdict": "no regression shown", "reasons": []},
        }  # fmt: skip
        (run / "results.json").write_text(json.dumps(result))
        sample = {"key": "1", "case": "chain-1", "way": "whole", "status": "fail", "kind": "wrong_tool",
                  "detail": "called g, not f", "answers": [{"content": "<b>no</b>"}]}  # fmt: skip
        (run / "samples.jsonl").write_text(
            json.dumps({"fingerprint": {}}) + "\n" + json.dumps(sample) + '\n{"key": "2", "ca'
        )
        (folder / "broken").mkdir()
        (folder / "broken" / "results.json").write_text("[")
        page.open(f"{gateway.url}/#/evaluations?id=first")
        page.reads("no regression shown", "3/4 30 % to 95 %", "wrong_tool", "chain-1")
        page.js("document.querySelector('details').open = true")
        page.reads("called g, not f", "<b>no</b>")
        assert gateway.ask("GET", "/-/evaluations/..").status == 404
        assert gateway.ask("GET", "/-/evaluations/broken").status == 404


PLACES = ("live", "live?id=1", "live?id=words", "models", "models?id=tiny", "playground", "rooms", "evaluations")


@pytest.mark.clients
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (360, False), (360, True)])
def test_axe_finds_nothing(width: int, dark: bool, page: Page, gateway: Gateway, clients: Path) -> None:
    """axe-core finds what keeps people from a page who use no mouse, or can't see it well."""
    file = clients / "node/node_modules/axe-core/axe.min.js"
    if not file.is_file():
        pytest.skip("axe-core is not installed: scripts/clients does it where there is npm")
    gateway.ask("POST", "/-/chat/completions", {**QUESTION, "model": "m", "stream": True})
    gateway.chat(model="gpt-4o")
    page.look(width, 900, dark=dark)
    for place in PLACES:
        page.open(f"{gateway.url}/#/{place}")
        page.wait("document.querySelector('main h1') && !document.querySelector('.late')")
        page.js(f"{file.read_text('utf-8')};0")
        found = page.js("axe.run(document).then(all => all.violations.map(one => [one.id, one.nodes[0].html]))")
        assert found == [], place

"""The views beside Live and Models: playground, rooms, evaluations; and that all of them can be used by anybody."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.features.clients.contracts import CONTRACTS
from tests.gateway.double import Exchange, chunk
from tests.hostile.running import Gateway, Upstream, configuration, polite, started
from tests.page import axe
from tests.page.browser import Page
from tests.page.conftest import QUESTION, needs_engine
from tests.patience import PATIENCE

ASK = QUESTION["messages"][0]["content"]


def type_into(page: Page, label: str, text: str) -> None:
    found = f"[...document.querySelectorAll('label')].find(one => one.textContent.includes({json.dumps(label)}))"
    page.wait(f"Boolean({found})")
    page.js(f"{found}.querySelector('input, textarea').focus()")
    page.type(text)


def playground(page: Page, gateway: Gateway, model: str) -> None:
    """A new conversation: the browser keeps those of earlier tests."""
    page.open(f"{gateway.url}/#/playground")
    page.click("button", "New conversation")
    page.choose(".settings select", model)
    page.js("document.querySelector('.more').open = true")


@needs_engine
def test_the_playground_shows_both_sides_and_takes_the_result_of_a_tool(page: Page, gateway: Gateway) -> None:
    playground(page, gateway, "tiny")
    page.js("[...document.querySelectorAll('.settings label')].find(one => one.innerText.trim() === 'tools').click()")
    type_into(page, "Temperature", "0")
    type_into(page, "Message", ASK)
    page.press("Enter")
    page.reads("get_weather", "Result of get_weather")
    assert "tool_call_start" not in page.text()
    page.click(".message button", "Raw")
    page.reads("tool_call_start")
    assert '"city": "Paris"' in page.js("document.querySelector('.pane.clean').innerText")
    type_into(page, "Result of get_weather", '{"celsius": 21}')
    page.click("button", "Send the result")
    page.wait("document.querySelectorAll('.chat [aria-live] > .message').length === 4")
    page.wait("!document.querySelector('.composer .main').textContent.includes('Stop')")
    asked = page.reads("result of the tool")
    assert '{"celsius": 21}' in asked
    # No prompt is in the address, nor where other pages of this host could come by it.
    assert "Paris" not in page.js("decodeURIComponent(location.href)")
    assert page.js("localStorage.length") <= 1


def test_the_playground_hears_and_speaks(page: Page, upstream: Upstream, tmp_path: Path) -> None:
    async def engine(exchange: Exchange) -> None:
        if exchange.path.endswith("/transcriptions"):
            await exchange.whole({"text": "What is a library?"})
        else:
            await exchange.whole(exchange.json["input"].encode(), head=b"Content-Type: audio/mpeg\r\n")

    upstream.script = engine
    server = {"runtime": "openai", "base_url": f"http://127.0.0.1:{upstream.port}"}
    models = {
        "e": {"runtime": "echo"},
        "ears": {**server, "role": "transcription"},
        "joe": {**server, "role": "speech"},
    }
    with started(tmp_path, {"active_model": "e", "models": models}) as gateway:
        playground(page, gateway, "e")
        page.js(
            "(() => { const all = new DataTransfer();"
            " all.items.add(new File([new Uint8Array([1, 2])], 'question.wav', {type: 'audio/wav'}));"
            " const drop = new DragEvent('drop', {dataTransfer: all, bubbles: true});"
            " document.querySelector('.chat').dispatchEvent(drop); })()"
        )
        page.reads("question.wav")
        page.click(".composer button", "Send")
        page.wait("document.querySelectorAll('.message.assistant .tools').length === 1")
        page.click(".message button", "Speak")
        page.wait("(document.querySelector('audio') || {src: ''}).src.startsWith('blob:')")
        assert (
            page.js("document.querySelector('.message.assistant .markdown').innerText").strip() == "What is a library?"
        )
        assert upstream.double.requests[-1].json["input"] == "What is a library?"


MARKDOWN = """\
# Title
Some **bold** and `code`, [a link](https://example.org/a), [no link](javascript:alert(1)).

- one
  1. two
```py
print("<b>")
```
| a | b |
|---|---|
| 1 | <img src=x onerror="document.title='hacked'"> |

![x](https://evil.example/p.png)
"""


def test_conversations_are_kept_stopped_asked_again_and_of_two_models(
    page: Page, gateway: Gateway, upstream: Upstream
) -> None:
    waits = threading.Event()
    asked: list[Any] = []

    async def writes(exchange: Exchange) -> None:
        if not exchange.body:
            await polite(exchange)
            return
        asked.append(exchange.json["messages"])
        await exchange.start()
        await exchange.event(chunk(MARKDOWN))
        if "wait" in str(exchange.json["messages"][-1]):
            await asyncio.to_thread(waits.wait, PATIENCE)
        await exchange.event(chunk(reason="stop"))
        await exchange.end()

    upstream.script = writes
    playground(page, gateway, "m")
    page.js(
        "(() => { const all = new DataTransfer();"
        " all.items.add(new File(['line 1'], 'notes.txt', {type: 'text/plain'}));"
        " all.items.add(new File([new Uint8Array([137, 80])], 'p.png', {type: 'image/png'}));"
        " const drop = new DragEvent('drop', {dataTransfer: all, bubbles: true});"
        " document.querySelector('.chat').dispatchEvent(drop); })()"
    )
    page.reads("notes.txt", "p.png")
    type_into(page, "Message", "Please wait")
    page.press("Enter")
    page.wait("document.querySelector('.markdown strong').textContent === 'bold'")
    page.click(".composer button", "Stop")
    page.reads("Regenerate")
    waits.set()
    assert [part["type"] for part in asked[0][0]["content"]] == ["text", "image_url", "text"]
    assert asked[0][0]["content"][0]["text"] == "File notes.txt:\n\nline 1"
    # The model's words stay words, but those that make a text readable.
    shown = page.js("document.querySelector('.markdown').innerHTML")
    assert page.js("document.querySelectorAll('.markdown img, .markdown script').length") == 0
    assert page.js("[...document.querySelectorAll('.markdown a')].map(one => one.href)") == [
        "https://example.org/a", "https://evil.example/p.png",
    ]  # fmt: skip
    assert page.js("document.querySelector('.markdown ul ol li').textContent") == "two"
    assert page.js("document.querySelector('.source pre').textContent") == 'print("<b>")'
    assert page.js("document.querySelectorAll('.markdown td').length") == 2, shown
    page.click(".message button", "Regenerate")
    page.wait("!document.querySelector('.composer .main').textContent.includes('Stop')")
    assert asked[1] == asked[0]
    assert page.js("document.querySelectorAll('.thread .message').length") == 2
    # Another one, of two models.
    page.click("button", "New conversation")
    page.choose(".settings label:nth-of-type(2) select", "echo")
    type_into(page, "Message", "Hello both")
    page.press("Enter")
    page.wait("document.querySelectorAll('.thread').length === 2")
    page.wait("document.querySelectorAll('.message.assistant').length === 2")
    page.wait("!document.querySelector('.composer .main').textContent.includes('Stop')")
    assert "Hello both" in page.js("document.querySelectorAll('.message.assistant')[1].innerText")
    page.open(f"{gateway.url}/#/playground")
    page.click(".shelf button", "Please wait")
    page.wait("document.querySelectorAll('.thread .message').length === 2")
    page.click(".shelf button", "Hello both")
    page.wait("document.querySelectorAll('.thread').length === 2")
    page.js("window.confirm = () => true; 0")
    page.click(".shelf button", "Delete all")
    page.wait("document.querySelectorAll('.shelf li').length === 0")


def test_the_playground_says_what_failed(page: Page, gateway: Gateway, upstream: Upstream) -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.whole({"error": {"message": "no seat is free"}}, 400)

    upstream.script = refuses
    playground(page, gateway, "m")
    type_into(page, "Message", "Hi")
    page.click("form button", "Send")
    page.reads("400", "no seat is free", "Try again")


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
    shown = page.reads("a room of mine", "to the agent", "Say something", "Hello", "the turn ended")
    assert re.findall(r"\b(?:room|agent|message):\w+", shown) == []  # the events' own names
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
    page.reads("Message")
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
        page.look(360, 760)
        page.open(f"{gateway.url}/#/evaluations")
        page.reads("3/4 30 % to 95 %")
        place = "document.querySelector('td.stays').getBoundingClientRect()"
        assert page.js(f"{place}.left >= 0 && {place}.right <= innerWidth")
        page.open(f"{gateway.url}/#/evaluations?id=first")
        page.reads("no regression shown", "3/4 30 % to 95 %", "wrong_tool", "chain-1")
        page.js("document.querySelector('details').open = true")
        page.reads("called g, not f", "<b>no</b>")
        assert gateway.ask("GET", "/-/evaluations/..").status == 404
        assert gateway.ask("GET", "/-/evaluations/broken").status == 404


def test_programs_are_connected(page: Page, gateway: Gateway) -> None:
    page.open(f"{gateway.url}/#/connect")
    page.reads("Base URL", f"{gateway.url}/v1", "None is needed", "ctxgate launch claude")
    page.js("document.querySelector('input[placeholder=\"Find a program\"]').focus()")
    page.type("codex")
    page.reads(f'base_url = "{gateway.url}/v1"', 'model = "m"', "16 384 tokens")
    page.choose(".connect select", "tiny")
    page.reads('model = "tiny"', "model_context_window = 1024")
    table = gateway.ask("GET", "/-/clients").json
    assert [one["name"] for one in table["clients"]] == [*CONTRACTS]
    assert gateway.ask("GET", "/-/clients?address=javascript:x").status == 400


PLACES = (
    *("live", "live?id=1", "live?id=words", "models", "models?id=tiny", "playground", "rooms", "evaluations"),
    "connect",
)


@pytest.mark.clients
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (360, False), (360, True)])
def test_axe_finds_nothing(width: int, dark: bool, page: Page, gateway: Gateway, subtests: pytest.Subtests) -> None:
    gateway.ask("POST", "/-/chat/completions", {**QUESTION, "model": "m", "stream": True})
    gateway.chat(model="gpt-4o")
    page.look(width, 900, dark=dark)
    for place in PLACES:
        page.open(f"{gateway.url}/#/{place}")
        page.wait("document.querySelector('main h1') && !document.querySelector('.late')")
        page.js("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        axe.check(page, subtests, place)

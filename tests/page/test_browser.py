"""The page in Chromium, before the real engine: what a person reads, and what a model's words can't do."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.double import Exchange, chunk, completion
from tests.hostile.running import Gateway, Json, Upstream, configuration, started, started_at
from tests.page.browser import Page
from tests.page.conftest import QUESTION, needs_engine
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.support.flex import flex_waits

EVIL = '<img src=x onerror="document.title=\'hacked\'"><script>document.title="hacked"</script>'
RAW = '<|tool_call_start|>[get_weather(city="Paris", unit="celsius")]<|tool_call_end|>'


@pytest.fixture(scope="module")
def asked(gateway: Gateway) -> Json:
    """Requests of all kinds: their numbers in the log."""
    made: Json = {}

    def one(name: str, path: str, body: Json) -> None:
        gateway.ask("POST", path, body, {"User-Agent": "tester/1.0"})
        made[name] = gateway.ask("GET", "/-/requests?limit=1").json["requests"][0]["id"]

    one("call", "/-/chat/completions", {**QUESTION, "stream": True})
    one("unrecorded", "/v1/chat/completions", QUESTION)
    one("too long", "/-/chat/completions", {**QUESTION, "messages": [{"role": "user", "content": "x " * 3000}]})
    one("no model", "/v1/chat/completions", {**QUESTION, "model": "gpt-4o"})
    return made


@needs_engine
def test_live_lists_what_was_asked_and_what_became_of_it(page: Page, gateway: Gateway, asked: Json) -> None:
    page.open(gateway.url)
    text = page.reads(
        "connected", "answers by default: m", "maximum context length is 1024", "there is no model 'gpt-4o'"
    )
    assert text.count("failed 4") == 2
    assert "tester" in text
    page.choose("select[aria-label=Outcome]", "failed")
    page.wait("document.querySelectorAll('tbody tr').length === 2")
    assert "outcome=failed" in page.js("location.hash")
    page.press("/")
    page.type("gpt-4o")
    page.wait("document.querySelectorAll('tbody tr').length === 1")


LATE_PAINT = """
const now = setTimeout;
window.requestAnimationFrame = () => 0;
window.setTimeout = (work, wait, ...more) => now(work, wait > 0 && wait < 1000 ? 3000 : wait, ...more);
"""


def test_what_comes_before_the_first_paint_is_shown(
    page: Page, upstream: Upstream, tmp_path: Path, test_model: Path
) -> None:
    """Nothing else comes from an idle gateway that would show it."""
    with started(tmp_path, configuration(upstream, tmp_path, test_model)) as gateway:
        gateway.chat()
        script = page.send("Page.addScriptToEvaluateOnNewDocument", source=LATE_PAINT)
        try:
            page.open(gateway.url)
            page.wait("document.querySelectorAll('tbody tr').length === 1")
        finally:
            page.send("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
            page.open("about:blank")


@needs_engine
def test_a_tool_call_raw_beside_clean(page: Page, gateway: Gateway, asked: Json) -> None:
    page.open(f"{gateway.url}/#/live?id={asked['call']}")
    page.reads("read the text as pythonic, found 1 tool call", "tester asked tiny by the OpenAI chat API, streamed")
    assert page.js("document.querySelector('.pane.raw mark').textContent") == RAW
    clean = page.js("document.querySelector('.pane.clean').innerText")
    assert "get_weather" in clean
    assert '"city": "Paris"' in clean
    assert "tool_call_start" not in clean
    page.click("button", "Payloads")
    page.wait("document.querySelectorAll('.payload').length > 3")
    assert "(held back)" in page.text()
    page.click("button", "Text")
    page.choose("label.inline select", "hermes")
    page.wait("document.querySelector('.pane.clean').innerText.includes('tool_call_start')")
    assert page.js("location.hash") == f"#/live?id={asked['call']}&as=hermes"


@needs_engine
def test_a_request_that_failed_is_explained(page: Page, gateway: Gateway, asked: Json) -> None:
    page.open(f"{gateway.url}/#/live?id={asked['too long']}")
    page.reads("It failed: 400 context_length_exceeded", "maximum context length is 1024 tokens")
    page.reads("The same request will fail again", "Nothing: the request ended first.")
    page.open(f"{gateway.url}/#/live?id={asked['no model']}")
    page.reads("It failed: 404 model_not_found", "config.yaml has: m, echo", "Its text was not recorded")


@needs_engine
def test_words_that_were_not_kept_are_said_to_be_so_with_the_cure(page: Page, gateway: Gateway, asked: Json) -> None:
    page.open(f"{gateway.url}/#/live?id={asked['unrecorded']}")
    text = page.reads("Its text was not recorded", "log: bodies: true")
    assert f"{gateway.url}/-" in text


def test_a_call_that_nobody_read_is_marked(page: Page, gateway: Gateway, upstream: Upstream) -> None:
    async def unread(exchange: Exchange) -> None:
        await exchange.whole(completion("[TOOL_CALL] get_weather in Paris, please"))

    upstream.script = unread
    ids = []
    for body in ({**QUESTION, "model": "m"}, {**QUESTION, "model": "m", "tools": []}):
        gateway.ask("POST", "/-/chat/completions", body)
        ids.append(gateway.ask("GET", "/-/requests?limit=1").json["requests"][0]["id"])
    page.open(gateway.url)
    page.reads("call in text")
    page.choose("select[aria-label=Outcome]", "unread")
    page.wait("document.querySelectorAll('tbody tr').length === 1")
    assert page.js("document.querySelector('tbody tr a').textContent") == str(ids[0])
    assert "repaired" not in page.js("document.querySelector('tbody tr').innerText")
    page.choose("select[aria-label=Outcome]", "ok")
    page.wait("document.querySelectorAll('tbody tr').length > 0")
    assert "call in text" not in page.js("document.querySelector('tbody').innerText")
    page.open(f"{gateway.url}/#/live?id={ids[0]}")
    page.reads("call in text", "It looks like a tool call, but the client got text.", "docs/unread-calls.md")
    page.open(f"{gateway.url}/#/live?id={ids[1]}")
    assert "It looks like a tool call" not in page.reads("What happened", "ok")


def test_what_was_mended_is_said_in_words(page: Page, gateway: Gateway) -> None:
    gateway.chat()
    page.open(gateway.url)
    page.wait("document.querySelectorAll('tbody tr').length > 0")
    for mended, words in (
        ("unmarked", "repaired: marks of a call"),
        ("unmarked, lexical", "repaired: marks of a call, spelling of a call"),
        ("schema", "repaired: types of a call"),
    ):
        entry = json.dumps({"mended": mended})
        page.js(
            'import("/ui/base.js").then(({state, changed}) => { state.requests = state.requests.map('
            f"(one, at) => (at ? one : {{...one, ...{entry}}})); changed(); }})"
        )
        page.wait(f"document.querySelector('tbody tr').innerText.includes({json.dumps(words)})")


def test_an_empty_gateway_says_how_to_begin(page: Page, upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    with started(tmp_path, configuration(upstream, tmp_path, test_model)) as gateway:
        page.open(gateway.url)
        page.reads("No request yet", f"{gateway.url}/v1", "curl", "Playground")


def test_a_running_answer_fills_and_stays_open_when_it_ends(page: Page, gateway: Gateway, upstream: Upstream) -> None:
    go_on = threading.Event()

    async def slow(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(chunk("first words"))
        await asyncio.to_thread(go_on.wait, PATIENCE)
        await exchange.event(chunk(" and the last"), chunk(reason="stop"))
        await exchange.end()

    upstream.script = slow
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Go"}]}
    page.open(gateway.url)
    page.reads("connected")
    asking = threading.Thread(target=lambda: gateway.ask("POST", "/-/chat/completions", body))
    asking.start()
    page.reads("writes the answer, 1 token")
    page.click("tr.running a")
    page.reads("It now writes", "first words")
    go_on.set()
    asking.join()
    page.reads("first words and the last", "ok")
    assert page.js("document.activeElement.tagName") == "H1"


def test_a_models_words_stay_words(page: Page, gateway: Gateway, upstream: Upstream) -> None:
    async def evil(exchange: Exchange) -> None:
        if "fail" in exchange.json["messages"][0]["content"]:
            await exchange.whole({"error": {"message": EVIL}}, 400)
        else:
            call = {"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": json.dumps({"a": EVIL})}}
            await exchange.whole(completion(EVIL, tool_calls=[call], reasoning_content=EVIL))

    upstream.script = evil
    for text in (EVIL, f"fail {EVIL}"):
        message: dict[str, Any] = {"role": "user", "content": text, "name": EVIL}
        gateway.ask(
            "POST", "/-/chat/completions", {"model": "m", "messages": [message], EVIL: EVIL}, {"User-Agent": EVIL}
        )
        id = gateway.ask("GET", "/-/requests?limit=1").json["requests"][0]["id"]
        for tab in ("Text", "Payloads", "JSON"):
            page.open(f"{gateway.url}/#/live?id={id}")
            page.click("button", tab)
            page.reads("onerror=")
            assert page.js("document.querySelectorAll('main img, main script').length") == 0
            assert "hacked" not in page.js("document.title")
    page.open(gateway.url)
    page.reads("onerror=")
    assert page.js("document.querySelectorAll('main img, main script').length") == 0


@needs_engine
def test_models_load_unload_and_explain(page: Page, gateway: Gateway) -> None:
    gateway.ask("POST", "/v1/models/tiny/unload")
    page.open(f"{gateway.url}/#/models")
    page.reads("tiny", "not loaded", "external server", "built in")
    page.click("button", "Load")
    page.reads("ready")
    page.wait("[...document.querySelectorAll('button')].some(one => one.textContent.includes('Unload'))")
    page.click("td a", "tiny")
    page.reads("calls are read as", "pythonic", "process")
    page.click("button", "Show the engine's log")
    page.wait("document.querySelector('pre.boxed') && document.querySelector('pre.boxed').textContent.length > 20")
    page.click("button", "Unload")
    page.reads("not loaded")


def test_models_say_who_waits(page: Page, gateway: Gateway, upstream: Upstream) -> None:
    page.open(f"{gateway.url}/#/models?id=m")
    page.reads("external server")
    with flex_waits(gateway, upstream, 2):
        text = page.reads("2 waiting: 2 flex", "for a free slot")
        assert "put aside" not in text
        page.js(
            """import("/ui/base.js").then(({state, changed}) => {
              const [model] = state.status.models;
              const waiting_tiers = {priority: 0, default: 1, flex: 2}, held_by = ["big", "old"];
              Object.assign(model, {waiting: 3, waiting_tiers, put_aside: 1, waits_for: "memory", held_by});
              changed();
            })"""
        )
        page.reads("3 waiting: 1 default, 2 flex (1 put aside)", "for memory, which big and old hold")
    page.wait("!document.body.innerText.includes('waiting:')")


def test_live_says_which_answer_is_aside(page: Page, gateway: Gateway) -> None:
    page.open(gateway.url)
    page.reads("connected")
    said = [
        ("put-aside", "for the engine, put aside"),
        ("put-aside queued for=place position=1 waiting=2", "for a free slot, 1 of 2 in line, put aside"),
        ("put-aside loading percent=40", "until the engine is loaded, 40 %, put aside"),
        ("queued for=memory position=1 waiting=1 held-by=big", "for memory, which big holds, 1 of 1 in line"),
        ("queued for=back-off position=1 waiting=1", "for the engine to start again, 1 of 1 in line"),
    ]
    for progress, words in said:
        one = json.dumps({"state": "waits", "progress": progress, "chunks": 5})
        assert page.js(f'import("/ui/live.js").then(({{doing}}) => doing({one}))') == words


def test_a_lost_gateway_comes_back_and_no_row_twice(
    page: Page, upstream: Upstream, tmp_path: Path, test_model: Path
) -> None:
    config = configuration(upstream, tmp_path, test_model)
    port = free_port()

    def rows() -> Any:
        return page.js("[...document.querySelectorAll('tbody tr td:first-child')].map(one => one.textContent)")

    with started_at(port, tmp_path, config) as gateway:
        gateway.chat()
        gateway.chat()
        page.open(gateway.url)
        page.wait("document.querySelectorAll('tbody tr').length === 2")
    page.reads("connection lost")
    assert rows() == ["2", "1"]
    with started_at(port, tmp_path, config) as gateway:
        gateway.chat()
        page.reads("connected")
        page.wait("document.querySelectorAll('tbody tr').length === 1")
        gateway.chat()
        page.wait("document.querySelectorAll('tbody tr').length === 2")
        assert rows() == ["2", "1"]


def test_a_gateway_with_keys_asks_for_one(page: Page, upstream: Upstream, tmp_path: Path, test_model: Path) -> None:
    key = "planted-key-of-the-page"
    config = {**configuration(upstream, tmp_path, test_model), "server": {"api_keys": ["${PAGE_KEY}"]}}
    with started(tmp_path, config, PAGE_KEY=key) as gateway:
        page.open(gateway.url)
        page.reads("needs a key", "This gateway answers only callers with a key.")
        assert "doesn't know the key" not in page.text()
        page.js("document.querySelector('dialog[open] input').focus()")
        page.type("another-key")
        page.press("Enter")
        page.reads("The gateway doesn't know the key that you gave.")
        page.js("document.querySelector('dialog[open] input').focus()")
        page.type(key)
        page.press("Enter")
        page.reads("connected", "No request yet")
        assert page.js("JSON.stringify(Object.entries(localStorage))").find(key) < 0
        assert key not in page.js("document.cookie + location.href")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (360, False), (360, True)])
def test_it_fits_every_window(width: int, dark: bool, page: Page, gateway: Gateway, asked: Json) -> None:
    page.look(width, 760, dark=dark)
    for place in ("live", f"live?id={asked['call']}", "live?id=words", "models", "models?id=tiny", *OTHERS):
        page.open(f"{gateway.url}/#/{place}")
        page.wait("document.querySelector('main h1') && !document.querySelector('.late')")
        assert page.js("document.documentElement.scrollWidth") <= width, place
        if place == "models":
            places = "[...document.querySelectorAll('tbody tr button')].map(one => one.getBoundingClientRect())"
            assert page.js(f"{places}.every(place => place.left >= 0 && place.right <= innerWidth)")


OTHERS = ("playground", "rooms", "evaluations", "connect")


def test_by_keyboard(page: Page, gateway: Gateway, asked: Json) -> None:
    page.open(gateway.url)
    page.wait("document.querySelectorAll('tbody tr').length > 3")
    page.press("j", "j", "k")
    newest = page.wait("document.querySelector('tr.chosen a').textContent")
    page.press("Enter")
    page.reads(f"Request {newest}", "What happened")
    page.press("j")
    page.reads(f"Request {int(newest) - 1}")
    page.press("Escape")
    page.wait("location.hash === '#/live'")
    page.press("2")
    page.wait("document.querySelector('main h1').textContent === 'Models'")
    assert page.js("document.activeElement.id") == "view"
    page.press("?")
    page.wait("document.querySelector('dialog[open]')")
    page.press("Escape")
    page.wait("!document.querySelector('dialog[open]')")
    page.press("1")
    page.wait("document.querySelector('main h1').textContent === 'Live'")
    page.wait("document.querySelectorAll('tbody tr').length > 3")
    page.press("p")
    page.wait("document.querySelector('button[aria-pressed=true]')")
    rows = page.js("document.querySelectorAll('tbody tr').length")
    gateway.chat()
    page.reads("1 new", "Go on")
    assert page.js("document.querySelectorAll('tbody tr').length") == rows


def test_it_asks_nobody_else_and_little(page: Page, gateway: Gateway) -> None:
    page.open(gateway.url)
    page.reads("connected")
    assert {url.split("/")[2] for url in page.requests if url.startswith("http")} == {f"127.0.0.1:{gateway.port}"}
    assert len([url for url in page.requests if "/ui/" in url or url.endswith("/")]) <= 8

"""Formats derived from the templates of models that nobody knows: where templates come from, what a bad one costs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.backends.about import About, about
from gateway.backends.echo import EchoBackend
from gateway.cli.main import main
from gateway.config import Model, load
from gateway.core import Gateway
from gateway.core.capability import CapabilityFinder
from gateway.detection import choice
from gateway.detection.choice import choose
from gateway.wire.chat import ChatRequest
from normalizers import Detection
from tests.formats.asking import ASK, WEATHER, ask, tool
from tests.formats.conftest import Serve, config, external
from tests.gateway.double import Double, Exchange
from tests.patience import PATIENCE
from tests.support.gguf_files import TEMPLATE, file

UNKNOWN = Path(__file__).parents[1] / "normalizers" / "unknown"
TAGS = (UNKNOWN / "tags_with_attributes.jinja").read_text("utf-8")
HERMES = (UNKNOWN.parent / "templates" / "hermes.jinja").read_text("utf-8")
NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = f"{{# <tool_call> #}}{NESTED}{{{{ messages[0].tool_calls }}}}"
SWELLING = (
    "{# <tool_call> #}{% set n = namespace(t='xxxxxxxx') %}"
    "{% for a in range(99) %}{% set n.t = n.t ~ n.t %}{% endfor %}{{ tool_calls }}"
)

CALL = '<use tool="get_weather"><set field="city">Paris <3</set><set field="unit">celsius</set></use>'
CALLS = f"Let me look.\n{CALL}\n{CALL}"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(choice, "SEEN", {})
        yield


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The processes that were started; nothing is known yet."""
    started = []

    def run(*args: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
        started.append(args)
        return RUN(*args, **options)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(choice, "SEEN", {})
    monkeypatch.setattr(subprocess, "run", run)
    return started


RUN = subprocess.run


def template(text: str) -> About:
    return About(text, source="a test")


SOURCES: dict[str, dict[str, Any]] = {
    "m.gguf": {"": file(**{TEMPLATE: TAGS, "general.architecture": "brandnew"})},
    "folder": {"chat_template.jinja": TAGS, "config.json": "{}"},
    "folder with a config": {"tokenizer_config.json": json.dumps({"chat_template": TAGS})},
    "folder with two": {
        "tokenizer_config.json": json.dumps(
            {"chat_template": [{"name": "default", "template": "none"}, {"name": "tool_use", "template": TAGS}]}
        )
    },
    "tokenizer_config.json": {"": json.dumps({"chat_template": TAGS}).encode()},
    "t.jinja": {"": TAGS.encode()},
}


@pytest.mark.parametrize("name", SOURCES)
def test_wherever_a_template_can_be_had(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / name
    for part, content in SOURCES[name].items():
        if part:
            place.mkdir(exist_ok=True)
            (place / part).write_text(content, "utf-8")
        else:
            place.write_bytes(content)
    assert main(["formats", "--detect", str(place)]) == 0
    said, _, mapping = capsys.readouterr().out.partition("\n\n")
    assert said.splitlines()[:3] == [
        f"{place}: derived",
        f"because of its chat template: <use tool= (in {name})",
        "it reads back all 19 test conversations that the template renders",
    ]
    # What it prints is valid in config.yaml, and the same format.
    entry = {"runtime": "llama.cpp", "path": "m.gguf", **yaml.safe_load(mapping)}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"active_model": "m", "models": {"m": entry}}))
    written = load(tmp_path / "config.yaml", {}).models["m"].custom_format
    derived = choose(about(place)).spec
    assert repr(written) == repr(derived)


async def test_an_answer_of_a_server_whose_template_nobody_knows() -> None:
    async def serve(exchange: Exchange) -> None:
        if exchange.path == "/props":
            await exchange.whole({"chat_template": TAGS, "default_generation_settings": {"n_ctx": 4096}})
        elif exchange.path == "/apply-template":
            await exchange.whole({"prompt": "<|turn|>user\nWeather?<|/turn|>\n<|turn|>model\n"})
        elif not exchange.json.get("stream"):
            await exchange.whole({"choices": [{"index": 0, "text": CALLS, "finish_reason": "stop"}]})
        else:
            await exchange.start()
            for at in range(0, len(CALLS), 3):
                await exchange.event({"choices": [{"index": 0, "text": CALLS[at : at + 3], "finish_reason": None}]})
            await exchange.event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
            await exchange.end()

    async with Double(serve).serve() as double:
        model = external(f"http://127.0.0.1:{double.address.port}", "auto")
        async with Gateway(config(model)) as gateway:
            whole = await ask(gateway, ASK, tools=[tool(WEATHER)])
            capability = gateway.routes["m"].sender.capability
            assert (capability.reader.name, capability.evidence) == (
                "derived",
                "chat template <use tool= (/props)",
            )
            streamed = await ask(gateway, ASK, tools=[tool(WEATHER)], stream=True)
    assert whole.parsed == streamed.parsed == 2 * [("get_weather", {"city": "Paris <3", "unit": "celsius"})]
    assert whole.content.strip() == streamed.content.strip() == "Let me look."
    assert whole.finish_reason == streamed.finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_real_engine_is_forced_to_call_in_a_derived_format(
    serve: Serve, test_model: Path, *, stream: bool
) -> None:
    url = serve("xllamacpp", test_model, "--chat-template-file", str(UNKNOWN / "tags_with_attributes.jinja"))
    # The model was trained on other calls, so it wouldn't end a text.
    unit = {"type": "string", "enum": ["celsius", "kelvin"]}
    parameters = {"type": "object", "properties": {"unit": unit}, "required": ["unit"]}
    once: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False, "stream": stream}
    async with Gateway(config(external(url, "auto"))) as gateway:
        said = await ask(gateway, ASK, tools=[tool({"name": "set_unit", "parameters": parameters})], **once)
        assert gateway.routes["m"].sender.capability.reader.name == "derived"
    ((name, arguments),) = said.parsed
    assert (name, arguments["unit"] in unit["enum"]) == ("set_unit", True)
    assert (said.content, said.finish_reason) == ("", "tool_calls")


def test_a_template_is_rendered_once(starts: list[Any]) -> None:
    first = choose(template(TAGS))
    assert first.fields is not None
    assert choose(template(TAGS)) == first
    choice.SEEN.clear()  # as in another gateway
    assert choose(template(TAGS)) == first
    assert len(starts) == 1
    choose(template(TAGS + " "))
    assert len(starts) == 2


async def test_nobody_else_waits_for_templates(starts: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many models there are, the threads that all work shares stay free."""
    came, go, run, loop = asyncio.Event(), threading.Event(), subprocess.run, asyncio.get_running_loop()

    def held(*args: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
        loop.call_soon_threadsafe(came.set)
        assert go.wait(PATIENCE)
        return run(*args, **options)

    monkeypatch.setattr(subprocess, "run", held)
    loop.set_default_executor(ThreadPoolExecutor(2))
    request = ChatRequest.parse(b'{"messages":[{"role":"user","content":"Hi"}]}')
    found = [CapabilityFinder(Model(name="m", runtime="echo", tool_call_format="auto")) for _ in range(4)]
    asking = [asyncio.create_task(finder.find(request, Known(f"{TAGS}{at * ' '}"))) for at, finder in enumerate(found)]
    try:
        async with asyncio.timeout(PATIENCE):
            await came.wait()
            await asyncio.to_thread(len, "")
            # Nor does a model whose template needs no rendering.
            await CapabilityFinder(Model(name="m", runtime="echo", tool_call_format="auto")).find(request, Known("x"))
    finally:
        go.set()
    await asyncio.gather(*asking)
    assert [finder.reader.name for finder in found] == ["derived"] * 4
    assert len(starts) == 4


class Known(EchoBackend):
    """A server that tells its template."""

    def __init__(self, text: str) -> None:
        super().__init__(Model(name="m", runtime="echo"), None)
        self._text = text

    async def about(self) -> About:
        return template(self._text)


def test_a_kept_result_that_is_damaged_is_made_again(starts: list[Any]) -> None:
    first = choose(template(TAGS))
    (kept,) = choice.folder().iterdir()
    kept.write_bytes(b"{")
    choice.SEEN.clear()
    assert choose(template(TAGS)) == first
    assert len(starts) == 2


def test_results_that_are_kept_are_bounded(starts: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choice, "MAX_FILES", 2)
    choice.folder().mkdir(parents=True)
    for name, age in {"oldest": 1, "older": 2, "newer": 3}.items():
        file = choice.folder() / f"{name}.json"
        file.write_bytes(b"{}")
        os.utime(file, (age, age))
    choose(template(TAGS))
    assert len(starts) == 1
    kept = {file.stem for file in choice.folder().iterdir()}
    assert len(kept) == 2
    assert "newer" in kept


KEPT = {
    "another version's": {"dialect": "json", "unheard_of": 1},
    "an import": {"dialect": "os:system"},
    "another format's": {"like": "hermes"},
}


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_result_that_is_no_format_changes_nothing(name: str, starts: list[Any]) -> None:
    choose(template(HERMES))
    (file,) = choice.folder().iterdir()
    file.write_text(json.dumps({"fields": KEPT[name], "evidence": ["<x>"], "probes": 19}))
    choice.SEEN.clear()
    chosen = choose(template(HERMES))
    assert (chosen.found, chosen.fields) == (Detection("hermes", "chat template", ("<tool_call>",)), None)
    assert len(starts) == 1


def test_a_template_without_calls_starts_no_process(starts: list[Any]) -> None:
    assert choose(template("{{ messages }}")).found is None
    assert choose(About(None)).found is None
    assert starts == []


def test_a_built_in_format_that_reads_the_template_wins() -> None:
    chosen = choose(template(HERMES))
    assert (chosen.found, chosen.fields) == (Detection("hermes", "chat template", ("<tool_call>",)), None)
    assert chosen.probes == 19


def test_marks_that_mean_another_format_here_give_way() -> None:
    source = TAGS.replace("<use tool=", "<tool_call><use tool=").replace("</use>", "</use></tool_call>")
    chosen = choose(template(source))
    assert chosen.fields is not None
    assert chosen.found == Detection("derived", "chat template", ("<tool_call>",))


BAD = {
    "it loops for ever": (ENDLESS, 0.3, "takes longer than 0.3 s of processor time"),
    "it fills the memory": (SWELLING, 20.0, "too much memory"),
    "it is no template": ("{% if <tool_call> tool_calls", 20.0, "its syntax"),
    "it refuses all": ("{{ raise_exception('<tool_call> tool_calls!') }}", 20.0, "<tool_call> tool_calls!"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_template_changes_nothing(name: str, starts: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """And costs its time limit, once."""
    source, seconds, reason = BAD[name]
    monkeypatch.setattr(choice, "SECONDS", seconds)
    monkeypatch.setattr(choice, "WALL_SECONDS", PATIENCE)
    chosen = choose(template(source))
    assert (chosen.found, chosen.fields) == (Detection("hermes", "chat template", ("<tool_call>",)), None)
    assert reason in chosen.reason
    choice.SEEN.clear()
    assert choose(template(source)) == chosen
    assert len(starts) == 1


def test_a_process_that_cannot_start_changes_nothing(starts: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    chosen = choose(template(HERMES))
    assert (chosen.spec and chosen.spec.name, chosen.fields) == ("hermes", None)
    assert "no process renders the template" in chosen.reason
    assert not choice.folder().exists()  # it is tried again


async def test_an_endless_template_leaves_the_model_to_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "SECONDS", 0.3)
    (tmp_path / "chat_template.jinja").write_text(ENDLESS)
    async with Gateway(config(Model(name="m", runtime="mlx", path=tmp_path, tool_call_format="auto"))) as gateway:
        capability = gateway.routes["m"].sender.capability
        await capability.detect()
        assert (capability.reader.name, capability.evidence) == (
            "hermes",
            f"chat template <tool_call> ({tmp_path.name})",
        )


async def test_a_configured_format_is_forced_as_the_template_writes_it(tmp_path: Path) -> None:
    async def serve(exchange: Exchange) -> None:
        if exchange.path == "/props":
            source = HERMES.replace("<tool_call>\n{", "<tool_call>{").replace("}\n</tool_call>", "}</tool_call>")
            await exchange.whole({"chat_template": source, "default_generation_settings": {"n_ctx": 4096}})
        elif exchange.path == "/apply-template":
            await exchange.whole({"prompt": "<|turn|>user\nWeather?<|/turn|>\n<|turn|>model\n"})
        else:
            asked.append(exchange.json["grammar"])
            call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
            await exchange.whole({"choices": [{"index": 0, "text": call, "finish_reason": "stop"}]})

    asked: list[str] = []
    async with Double(serve).serve() as double:
        model = external(f"http://127.0.0.1:{double.address.port}", "hermes")
        async with Gateway(config(model)) as gateway:
            said = await ask(gateway, ASK, tools=[tool(WEATHER)], tool_choice="required")
            spec = gateway.routes["m"].sender.capability.reader
    assert said.parsed == [("get_weather", {"city": "Paris"})]
    assert (spec.name, spec.layout and spec.layout.opening) == ("hermes", "<tool_call>")
    assert '"<tool_call>" ' in asked[0]

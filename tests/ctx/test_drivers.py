"""Who asks the model: routes of drivers, their APIs, credentials; and that nobody runs what a model wants run."""

from __future__ import annotations

import ast
import errno
import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from pydantic import SecretStr

from gateway.config import load
from gateway.core import Gateway
from gateway.core.reload import Reloader
from gateway.errors import CATEGORIES, Category, GatewayError, ProviderInvalidRequest, ProviderRateLimit
from gateway.features.ctx.agents.provider import provider
from gateway.features.ctx.drivers.responses import request
from gateway.features.ctx.events import line
from gateway.features.ctx.execution import Execution
from gateway.features.ctx.live import LiveTree
from gateway.features.ctx.objects import ObjectName, Triple
from gateway.features.ctx.settings import CtxModel, UseCase
from gateway.features.ctx.sync import sync
from gateway.provider import (
    AssistantMessage,
    Message,
    Response,
    TextDelta,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from gateway.services import Services
from tests.conftest import ROOT
from tests.ctx.kept import Kept, eventually, keeping
from tests.ctx.served import FORBIDDEN, Tree, text, types
from tests.gateway.double import Double, Exchange, answers, chunk, says, streams

RESPONSES = (
    {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
    {"type": "response.reasoning_text.delta", "item_id": "rs_1", "delta": "Hm."},
    {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hel"},
    {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "lo"},
    {
        "type": "response.output_item.done",
        "item": {"type": "function_call", "id": "fc_1", "call_id": "call_x", "name": "f", "arguments": '{"a": 1}'},
    },
    {
        "type": "response.completed",
        "response": {
            "id": "resp_1",
            "usage": {"input_tokens": 10, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}},
        },
    },
)


def route(**table: list[str]) -> CtxModel:
    return CtxModel(object="acme/m", driver={use: tuple(names) for use, names in table.items()})  # type: ignore[misc, arg-type]


async def asked(kept: Kept, use: UseCase, **fields: Any) -> list[dict[str, Any]]:
    """The events of an execution for a use."""
    triple = Triple.of(kept.root, ObjectName.parse("model/acme/m"))
    request = {"messages": [{"role": "user", "content": "hello"}], **fields}
    return [
        json.loads(line(event))
        async for batch in Execution(kept.services, triple, use, "r1").events(request)
        for event in batch
    ]


async def test_the_responses_api(short: Path) -> None:
    async with (
        Double(streams(*RESPONSES, done=False)).serve() as double,
        keeping(short, double, object=route(exec=["openai-responses"]), defaults={"max_tokens": 9}) as kept,
    ):
        told, exit_code = await kept.execute("acme/m", "hello")
        assert exit_code == 0
        assert text(told) == "Hello"  # in one delta or two
        assert [frame for frame in told if frame["type"] != "delta"] == [
            {"type": "start", "run": "r1", "model": "acme/m"},
            {"type": "reasoning_delta", "run": "r1", "text": "Hm."},
            {"type": "reasoning_message", "run": "r1", "content": [{"type": "text", "text": "Hm."}]},
            {"type": "message", "run": "r1", "role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
            {"type": "tool_call", "id": "call-1", "run": "r1", "name": "f", "arguments": {"a": 1}},
            {"type": "usage", "run": "r1", "input_tokens": 10, "output_tokens": 3, "cached_tokens": 4},
            {"type": "done", "run": "r1", "status": "ok"},
        ]
        assert not FORBIDDEN & set(json.dumps(told).replace('"', " ").split())
        (entry,) = kept.gateway.request_log.entries()
        assert (entry.api, entry.outcome, entry.prompt_tokens, entry.completion_tokens) == ("ctx", "ok", 10, 3)
        exchange = double.requests[0]
        assert exchange.path == "/v1/responses"
        assert exchange.json == {
            "model": "m",
            "input": [{"role": "user", "content": "hello"}],
            "max_output_tokens": 9,
            "stream": True,
            "store": False,
        }


async def test_a_use_without_a_driver(short: Path) -> None:
    async with Double().serve() as double, keeping(short, double, object=route(exec=["openai-chat"])) as kept:
        told = await asked(kept, "socket")
        messages = [event["message"] for event in told if event["type"] == "error"]
        assert messages == ["model/acme/m: its driver file names none for socket, and no default"]


@pytest.mark.parametrize(
    ("scripts", "codes"),
    [
        ([streams({"type": "response.failed", "response": {"error": {"message": "no", "code": "x"}}})], "EHOSTDOWN"),
        ([streams(RESPONSES[2], {"type": "error", "message": "no"})], "EHOSTDOWN"),
        ([streams(RESPONSES[2], b"{")], "EPROTO"),
        ([streams(RESPONSES[2], done=False)], "EHOSTDOWN"),
        ([says(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", close=True)], "EHOSTDOWN"),
        ([answers({"error": {"message": "bad key"}}, 401)], "EACCES"),
        ([answers({"error": {"message": "model m not found", "code": "model_not_found"}}, 404)], "ENOENT"),
        ([answers({"error": {"message": "slow down"}}, 429)], "EBUSY"),
    ],
)
async def test_failures_of_the_responses_api(scripts: Any, codes: str, short: Path) -> None:
    """What came before is told; no other driver is asked for an answer that has failed."""
    routed = route(exec=["openai-responses", "openai-chat"])
    async with Double(*scripts).serve() as double, keeping(short, double, object=routed) as kept:
        told, exit_code = await kept.execute("acme/m", "hello")
        assert [frame["code"] for frame in told if frame["type"] == "error"] == [codes]
        assert (told[-1]["status"], exit_code > 0) == ("error", True)
        (entry,) = kept.gateway.request_log.entries()
        assert (entry.api, getattr(errno, codes)) == ("ctx", CATEGORIES[cast(Category, entry.outcome)].errno)
        assert {exchange.path for exchange in double.requests} == {"/v1/responses"}


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_without_the_responses_api(status: int, short: Path) -> None:
    """The next driver of the list asks, and nobody sees the difference."""

    async def script(exchange: Exchange) -> None:
        if exchange.path == "/v1/responses":
            await exchange.whole({"error": {"message": "Not Found"}}, status)
        else:
            await streams(chunk("Hello"))(exchange)

    async with Double(script).serve() as double, keeping(short, double) as kept:
        told = await asked(kept, "agent")
        assert types(told) == ["start", "delta", "message", "done"]
        assert [exchange.path for exchange in double.requests] == ["/v1/responses", "/v1/chat/completions"]
        (entry,) = kept.gateway.request_log.entries()
        assert (entry.api, entry.outcome) == ("ctx", "ok")


async def test_agents_prefer_the_richer_api(short: Path) -> None:
    async with Double(streams(*RESPONSES)).serve() as double, keeping(short, double) as kept:
        assert text(await asked(kept, "agent")) == "Hello"
        assert [exchange.path for exchange in double.requests] == ["/v1/responses"]


async def test_an_agent_s_model_is_asked_through_the_responses_api(short: Path) -> None:
    """The agent's turn sees a chat: the texts, the call and the usage of the Responses API's events."""
    messages: list[Message] = [
        UserMessage("hello"),
        AssistantMessage("", [ToolCall("call_x", "f", {"a": 1})]),
        ToolMessage("2", "call_x"),
    ]
    async with (
        Double(streams(*RESPONSES)).serve() as double,
        keeping(short, double, object=route(agent=["openai-responses"]), defaults={"max_tokens": 9}) as kept,
    ):
        asked = provider(kept.gateway, "ctx:acme/m", "m")
        async with await asked.complete(messages, [Tool("f", "", {"type": "object"})], stream=True) as answer:
            *deltas, response = [event async for event in answer]
        assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Hello"
        assert isinstance(response, Response)
        (call,) = response.message.tool_calls
        assert (response.message.text, call.name, call.arguments) == ("Hello", "f", {"a": 1})
        assert (response.finish_reason, response.usage.prompt_tokens, response.usage.completion_tokens) == (
            *("tool_calls", 10, 3),
        )
        (exchange,) = double.requests
        assert exchange.path == "/v1/responses"
        assert exchange.json["input"] == [
            {"role": "user", "content": "hello"},
            {"type": "function_call", "call_id": "call_x", "name": "f", "arguments": '{"a":1}'},
            {"type": "function_call_output", "call_id": "call_x", "output": "2"},
        ]
        assert [tool["name"] for tool in exchange.json["tools"]] == ["f"]
        (entry,) = kept.gateway.request_log.entries()
        assert (entry.api, entry.outcome) == ("ctx", "ok")


async def test_an_agent_learns_why_its_route_failed(short: Path) -> None:
    failing = answers({"error": {"message": "slow down"}}, 429)
    routed = route(agent=["openai-embeddings", "openai-responses"])
    async with Double(failing).serve() as double, keeping(short, double, object=routed) as kept:
        with pytest.raises(ProviderRateLimit, match="slow down"):
            await provider(kept.gateway, "ctx:acme/m", "m").complete([UserMessage("hello")], stream=True)
    async with Double().serve() as double, keeping(short, double, object=route(agent=["openai-rerank"])) as kept:
        with pytest.raises(GatewayError, match="none of the drivers of its route agent can ask it"):
            await provider(kept.gateway, "ctx:acme/m", "m").complete([UserMessage("hello")], stream=True)
        assert double.requests == []


RANKED = {"results": [{"index": 0, "relevance_score": 0.2}, {"index": 1, "relevance_score": 0.9}]}
DOCUMENTS = {"query": "penguin", "documents": ["red", "blue penguin"]}


async def test_a_reranker_gives_places_and_scores(short: Path) -> None:
    """Best first, as one text of JSON; it isn't asked for what isn't a query with documents."""
    scores = answers({**RANKED, "usage": {"prompt_tokens": 7, "total_tokens": 7}})
    async with Double(scores).serve() as double, keeping(short, double, role="rerank") as kept:
        told, exit_code = await kept.execute("acme/m", json.dumps(DOCUMENTS))
        assert (exit_code, types(told)) == (0, ["start", "delta", "message", "usage", "done"]), told
        ranked = [(one["index"], one["relevance_score"]) for one in json.loads(text(told))]
        assert ranked == [(1, 0.9), (0, 0.2)]
        assert (told[3]["input_tokens"], told[3]["output_tokens"]) == (7, 0)
        (exchange,) = double.requests
        assert exchange.path == "/v1/rerank"
        assert (exchange.json["query"], exchange.json["documents"]) == ("penguin", ["red", "blue penguin"])
        told, exit_code = await kept.execute("acme/m", '{"query": "penguin"}')
        assert (exit_code, told[0]["code"], len(double.requests)) == (2, "EINVAL", 1)
        assert not kept.connect().path.exists()


async def test_a_chat_model_ranks_nothing(short: Path) -> None:
    routed = route(exec=["openai-rerank"])
    async with Double().serve() as double, keeping(short, double, object=routed) as kept:
        told, _ = await kept.execute("acme/m", "hello")
        assert "openai-rerank: the model ranks no documents" in told[-2]["message"]
        assert double.requests == []


@pytest.mark.parametrize(
    ("driver", "use", "outcome"),
    [
        ("default=mystery\n", "exec", "ENOSYS"),
        ("exec=mystery\ndefault=openai-chat\n", "exec", "Hello"),
        ("exec=mystery,openai-chat\n", "exec", "Hello"),
        ("agent=openai-chat\n", "exec", "ENOSYS"),
        ("socket=debug\ndefault=openai-chat\n", "socket", "hello"),
        ("socket=debug\ndefault=openai-chat\n", "exec", "Hello"),
        ("exec=openai-chat\nexec=debug\n", "exec", "EINVAL"),
        ("", "exec", "EINVAL"),
    ],
)
async def test_routes(driver: str, use: UseCase, outcome: str, short: Path) -> None:
    """The use's drivers, then the default's. The file is read at each call."""
    async with Double(streams(chunk("Hello"))).serve() as double, keeping(short, double) as kept:
        (kept.root / "model/acme/m.d/driver").write_text(driver)
        told = await asked(kept, use)
        assert (text(told) or told[0].get("code")) == outcome
        if outcome == "ENOSYS":
            # Before anything was asked.
            assert types(told) == ["error", "done"]
            assert double.requests == []


async def test_defaults_are_applied_and_overridden(short: Path) -> None:
    async with (
        Double(streams(chunk("Hello"))).serve() as double,
        keeping(short, double, defaults={"top_p": 0.5}) as kept,
    ):
        (kept.root / "model/acme/m.d/default").write_text("temperature=0.25\nmax_tokens=7\n")
        await asked(kept, "exec", max_tokens=3)
        sent = double.requests[0].json
        assert (sent["temperature"], sent["max_tokens"], sent["top_p"]) == (0.25, 3, 0.5)
        (kept.root / "model/acme/m.d/default").write_text("temperature\n")
        told = await asked(kept, "exec")
        assert [frame.get("code") for frame in told] == ["EINVAL", None]
        assert "default: line 1: no value for 'temperature'" in told[0]["message"]


def test_a_chat_request_as_one_of_the_responses_api() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "u"}}
    fields = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, image]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "7"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}},
        "reasoning_effort": "low",
        "temperature": 0,
        "max_completion_tokens": 5,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert request(fields) == {
        "model": "m",
        "input": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}],
            },
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "7"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {}}},
        "reasoning": {"effort": "low"},
        "temperature": 0,
        "max_output_tokens": 5,
        "stream": True,
        "store": False,
    }  # fmt: skip
    with pytest.raises(ProviderInvalidRequest, match="no content part 'input_audio'"):
        request({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]})


# Credentials

KEYED = """\
active_model: m
models: {m: {runtime: openai, base_url: 'https://api.lmm.best:9000'}}
ctx: {enabled: true, models: {m: {credential: lmm}}}
"""


@pytest.mark.parametrize(
    ("environ", "kept", "found"),
    [
        ({"LMM_API_KEY": "exported"}, {("cortexfs:lmm", "default"): "kept"}, "exported"),
        ({"LMM_API_KEY": ""}, {("cortexfs:lmm", "default"): "kept"}, "kept"),
        ({}, {("cortexfs:lmm", "other"): "x", ("lmm", "default"): "y"}, None),
    ],
)  # fmt: skip
def test_where_a_credential_comes_from(
    environ: dict[str, str], kept: dict[tuple[str, str], str], found: str | None, tmp_path: Path
) -> None:
    keyring = pytest.importorskip("keyring")
    from tests.ctx.keychain import Memory

    before = keyring.get_keyring()
    keyring.set_keyring(Memory(kept))
    try:
        (tmp_path / "config.yaml").write_text(KEYED)
        key = load(tmp_path / "config.yaml", environ).models["m"].api_key
    finally:
        keyring.set_keyring(before)
    assert (key.get_secret_value() if key is not None else None) == found


def test_a_bad_credential_is_noted_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(KEYED)
    (note,) = load(tmp_path / "config.yaml", {"LMM_API_KEY": "sk-1\nx"}).notes
    assert (note.line, note.column) == (3, KEYED.splitlines()[2].index("credential") + 1)
    assert note.message.startswith("ctx.models.m.credential: ")
    assert "sk-1" not in note.message


def test_a_keychain_that_is_locked_is_noted(tmp_path: Path) -> None:
    """Nobody can unlock it for a gateway that starts by itself; the other models serve."""
    keyring = pytest.importorskip("keyring")
    from tests.ctx.keychain import Memory

    before = keyring.get_keyring()
    keyring.set_keyring(Memory({}))
    try:
        (tmp_path / "config.yaml").write_text(KEYED.replace("lmm}", "locked}"))
        config = load(tmp_path / "config.yaml", {})
    finally:
        keyring.set_keyring(before)
    (note,) = config.notes
    assert note.line == 3
    assert "can't be read (KeyringLocked); unlock it, or set LOCKED_API_KEY" in note.message
    assert config.models["m"].api_key is None


async def test_a_missing_key_is_reported_before_any_request(short: Path) -> None:
    object = CtxModel(object="acme/m", credential="far-off")
    async with Double(streams(chunk("Hello"))).serve() as double, keeping(short, double, object=object) as kept:
        told, exit_code = await kept.execute("acme/m", "hello")
        assert ([frame.get("code") for frame in told], exit_code) == (["EACCES", None], 13)
        assert "FAR_OFF_API_KEY" in told[0]["message"]
        assert double.requests == []
        assert (kept.root / "model/acme/m.d/status").read_text() == "unconfigured\n"
        # A socket that would only answer errors isn't there; with the key, it is.
        socket = kept.root / "model/acme/m.sock"
        assert not socket.exists()
        config = kept.gateway.config
        keyed = replace(config.models["m"], api_key=SecretStr("a key"))
        kept.gateway.apply(replace(config, models={**config.models, "m": keyed}))
        await eventually(socket.is_socket)
        async with kept.connect("acme/m") as client:
            await client.ask(op="send", id="m1", scope="temp", input="hello")
            assert (await client.until())[-1]["status"] == "ok"
        kept.gateway.apply(config)
        await eventually(lambda: not socket.exists())


# The tool boundary

RUNNING = {"subprocess", "pty", "multiprocessing", "runpy", "code", "ctypes"}
EXECUTING = {"system", "popen", "execv", "execve", "execvp", "spawnv", "posix_spawn", "fork", "eval", "exec", "compile"}


EXPECTED = {
    # They start the tree's own runner, without any input, and a compiler for it.
    "doctor": {"subprocess"},
    "launcher": {"subprocess"},
    # The runner becomes the conversation's program.
    "client": {"execv"},
    "control": {"compile"},
    "metadata": {"compile"},
    "projection": {"compile"},
    # It lists the rooms of agents, and runs nothing.
    "stored": {"gateway.features.rooms"},
}
WITH_TOOLS = ("agents", "tools")
"""The modules of the other two kinds of objects."""


@pytest.mark.parametrize("path", sorted((ROOT / "gateway/features/ctx").rglob("*.py")), ids=lambda path: path.stem)
def test_nothing_that_asks_a_model_can_run_a_tool(path: Path) -> None:
    """Nor does it know the rooms, where tools are run."""
    if path.parent.name in WITH_TOOLS:
        return
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {alias.name.split(".")[0] for alias in names} & RUNNING
            case ast.ImportFrom(module=str(module)):
                found |= {module.split(".")[0]} & RUNNING
                found |= {module} & {"gateway.features.rooms", "gateway.features.agents.turn"}
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in EXECUTING:
                found.add(name)
    assert found == EXPECTED.get(path.stem, set())


@pytest.mark.parametrize(
    "module", ["execution", "sessions", "temporary", "prompt", "drivers/chat", "drivers/responses"]
)
def test_what_asks_a_model_reaches_no_tools(module: str) -> None:
    source = (ROOT / f"gateway/features/ctx/{module}.py").read_text("utf-8")
    imported = re.findall(r"^\s*(?:from|import) (gateway\S*)", source, re.MULTILINE)
    assert not [
        name
        for name in imported
        if name.startswith(
            ("gateway.features.agents.tools", "gateway.features.ctx.tools", "gateway.features.ctx.agents")
        )
    ]


def test_a_tool_call_starts_no_process(served: Tree) -> None:
    """A real model calls a tool that has the name of a program; the gateway's processes stay as they are."""
    asking = {"messages": [{"role": "user", "content": "What is the weather in Paris in celsius?"}]}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    (served.folder / "request.json").write_text(json.dumps({**asking, "tools": [tool]}))
    assert served.sh("/ctx/model/main < request.json").returncode == 0
    before = processes(served)
    done = served.sh("/ctx/model/main < request.json")
    assert "tool_call" in types([json.loads(line) for line in done.stdout.splitlines()])
    assert processes(served) == before


def processes(made: Tree) -> set[str]:
    """The gateway's, and those that they started, without the guard of its end: that one starts a second later."""
    assert made.process is not None
    found = {str(made.process.pid)}
    while True:
        children = {
            child
            for process in found
            for task in Path(f"/proc/{process}/task").glob("*/children")
            for child in task.read_text().split()
            if b"end_guard.sh" not in Path(f"/proc/{child}/cmdline").read_bytes()
        }
        if children <= found:
            return found
        found |= children


async def test_a_key_that_comes_into_the_keychain_holds_at_once(short: Path) -> None:
    """The gateway needn't be started again."""
    keyring = pytest.importorskip("keyring")
    from tests.ctx.keychain import Memory

    passwords: dict[tuple[str, str], str] = {}
    before = keyring.get_keyring()
    keyring.set_keyring(Memory(passwords))
    try:
        async with Double(streams(chunk("Hello"))).serve() as double:
            file = short / "config.yaml"
            file.write_text(
                f"active_model: m\nmodels: {{m: {{runtime: openai, base_url: 'http://127.0.0.1:{double.address.port}'}}}}\n"
                f"ctx: {{enabled: true, root: {short}/t, models: {{m: {{object: acme/m, credential: far-off}}}}}}\n"
                f"state_dir: {short}/state\n"
            )
            async with Gateway(load(file, {})) as gateway:
                services = Services(gateway, Reloader(gateway, lambda _: load(file, {})))
                sync(short / "t", gateway.config)
                kept = Kept(short / "t", services, LiveTree(services))
                assert (await asked(kept, "exec"))[0]["code"] == "EACCES"
                passwords["cortexfs:far-off", "default"] = "s3cret"
                assert text(await asked(kept, "exec")) == "Hello"
                assert double.requests[0].headers["authorization"] == "Bearer s3cret"
                await services.aclose()
    finally:
        keyring.set_keyring(before)

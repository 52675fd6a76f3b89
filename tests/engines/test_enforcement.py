"""Every constraint of a request on every engine, whole and streamed: the answer holds to it, or the error says why not.

docs/guarantees.md has the table of the ways; this keeps it true.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.backends.ollama_double import OllamaDouble
from tests.conftest import ROOT
from tests.engines.served import served
from tests.patience import PATIENCE
from tests.ports import free_port

Json = dict[str, Any]

DOCS = ROOT / "docs/guarantees.md"
ASK: Json = {"role": "user", "content": "What is the weather in Paris in celsius?"}
TWO: Json = {"role": "user", "content": "What is the weather in Paris and in Rome?"}
HELLO: Json = {"role": "user", "content": "Say hello."}


def tool(name: str, **properties: Json) -> Json:
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}


WEATHER = tool("get_weather", city={"type": "string", "maxLength": 20})
REMIND = tool("remind", text={"type": "string", "maxLength": 12}, days={"type": "integer", "minimum": 1, "maximum": 9})
TOOLS = [WEATHER, REMIND]
SCHEMA: Json = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}, "stars": {"type": "integer", "minimum": 0, "maximum": 5}},
    "required": ["mood", "stars"],
    "additionalProperties": False,
}
BY_SCHEMA = {"type": "json_schema", "json_schema": {"name": "mood", "schema": SCHEMA}}


@dataclass(frozen=True)
class Answer:
    """status: of the HTTP response, or of the error frame. way: what the answer itself says."""

    status: int
    content: str = ""
    calls: tuple[tuple[str, Json], ...] = ()
    finish_reason: str = ""
    way: str = ""
    error: Json | None = None


def required(answer: Answer) -> bool:
    return bool(answer.calls) and all(fits(name, arguments) for name, arguments in answer.calls)


def fits(name: str, arguments: Json) -> bool:
    schema = next(t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == name)
    return jsonschema.Draft202012Validator(schema).is_valid(arguments)


def named(answer: Answer) -> bool:
    return required(answer) and {name for name, _ in answer.calls} == {"remind"}


def none(answer: Answer) -> bool:
    return not answer.calls and answer.finish_reason in ("stop", "length")


def one_call(answer: Answer) -> bool:
    return len(answer.calls) <= 1


def by_schema(answer: Answer) -> bool:
    # Cut by max_tokens it isn't whole enough to be checked. A grammar's answer ends before.
    if answer.way == "checked" and answer.finish_reason == "length":
        return not answer.calls
    return not answer.calls and jsonschema.Draft202012Validator(SCHEMA).is_valid(json.loads(answer.content))


def an_object(answer: Answer) -> bool:
    # Cut by max_tokens, and that told, is all that a grammar can do for a model that finds no end.
    if answer.finish_reason == "length":
        return answer.content.lstrip().startswith("{")
    return isinstance(json.loads(answer.content), dict)


def schema_or_call(answer: Answer) -> bool:
    return required(answer) if answer.calls else by_schema(answer)


Fields = dict[str, Any]

CONSTRAINTS: Mapping[str, tuple[list[Json], Fields, Callable[[Answer], bool]]] = {
    '`tool_choice: "required"`': ([ASK], {"tools": TOOLS, "tool_choice": "required"}, required),
    "a tool's name": (
        [HELLO],
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "remind"}}},
        named,
    ),
    '`"none"`': ([ASK], {"tools": TOOLS, "tool_choice": "none"}, none),
    "`parallel_tool_calls: false`": ([TWO], {"tools": TOOLS, "parallel_tool_calls": False}, one_call),
    "`json_schema`": ([HELLO], {"response_format": BY_SCHEMA}, by_schema),
    "`json_object`": ([HELLO], {"response_format": {"type": "json_object"}}, an_object),
    "`json_schema` with tools": ([HELLO], {"tools": TOOLS, "response_format": BY_SCHEMA}, schema_or_call),
}

DOCUMENTED = {(400, "tool_choice_unmet"), (422, "structured_output_invalid"), (400, "invalid_request")}
"""Errors that an engine may give which can't be made to conform."""


@dataclass
class Client:
    http: httpx.Client

    def ask(self, messages: list[Json], fields: Fields, *, stream: bool) -> Answer:
        body = {"messages": messages, "temperature": 0, "max_tokens": 150, "stream": stream, **fields}
        response = self.http.post("/v1/chat/completions", json=body)
        if response.headers["content-type"].startswith("text/event-stream"):
            return streamed(response.text)
        told = response.json()
        if "error" in told:
            return Answer(response.status_code, error=told["error"])
        (choice,) = told["choices"]
        message = choice["message"]
        calls = tuple(
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        )
        way = response.headers.get("x-ctxgate-enforced", "gateway").partition(";")[0]
        return Answer(200, message.get("content") or "", calls, choice["finish_reason"], way)


def streamed(text: str) -> Answer:
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    content, reason, way, calls = "", "", "", list[tuple[str, str]]()
    for chunk in map(json.loads, events[:-1]):
        if "error" in chunk:
            statuses = {"structured_output_invalid": 422, "provider_invalid_request": 400}
            return Answer(statuses.get(chunk["error"]["category"], 500), error=chunk["error"])
        way = chunk.get("ctxgate", {}).get("enforced", {}).get("by") or way
        for frame in chunk["choices"]:
            content += frame["delta"].get("content") or ""
            reason = frame["finish_reason"] or reason
            for call in frame["delta"].get("tool_calls") or ():
                if call["index"] == len(calls):
                    calls.append((call["function"]["name"], ""))
                name, before = calls[call["index"]]
                calls[call["index"]] = (name, before + (call["function"].get("arguments") or ""))
    return Answer(200, content, tuple((name, json.loads(text)) for name, text in calls), reason, way)


def observe(client: Client) -> dict[str, str]:
    """The way of each constraint, once every answer is seen to hold to it, or to be the documented error."""
    ways = {}
    for name, (messages, fields, holds) in CONSTRAINTS.items():
        whole, stream = (client.ask(messages, fields, stream=stream) for stream in (False, True))
        for answer in (whole, stream):
            if answer.error is not None:
                assert (answer.status, answer.error["code"]) in DOCUMENTED, (name, answer)
            else:
                assert holds(answer), (name, answer)
        # What decides is the same for both forms; only a held stream says so in its last chunk.
        assert (whole.error is None) is (stream.error is None), (name, whole, stream)
        if whole.error is not None:
            ways[name] = "checked" if whole.error.get("attempts") else "refused"
        else:
            ways[name] = whole.way
            assert stream.way == ("checked" if whole.way == "checked" else "")
    return ways


def held_in_docs(engine: str, ways: Mapping[str, str]) -> None:
    rows = [
        re.split(r"\s*\|\s*", line.strip("| \n")) for line in DOCS.read_text("utf-8").splitlines() if line[:1] == "|"
    ]
    heads = next(cells for cells in rows if cells[0] == "engine" and len(cells) > len(ways))
    written = next((cells for cells in rows if cells[0] == engine and len(cells) == len(heads)), [engine])
    line = " | ".join(["", engine, *ways.values(), ""]).strip()
    assert dict(zip(heads[1:], written[1:], strict=False)) == ways, f"docs/guarantees.md should say:\n{line}"


@contextmanager
def behind(config: Mapping[str, Any], folder: Path, **environment: str) -> Iterator[Client]:
    model = {"tool_call_format": "pythonic", **config}
    with (
        served({"active_model": "tiny", "models": {"tiny": model}}, folder, **environment) as gateway,
        httpx.Client(base_url=gateway.url, timeout=PATIENCE) as http,
    ):
        yield Client(http)


FORMATS = ["pythonic", "native_json"]


@pytest.mark.parametrize("format", FORMATS)
def test_xllamacpp(test_model: Path, tmp_path: Path, format: str) -> None:
    pytest.importorskip("xllamacpp")
    config = {"runtime": "llama.cpp", "path": str(test_model), "context_window": 1024, "tool_call_format": format}
    with behind(config, tmp_path, PATH=os.defpath) as client:
        held_in_docs("xllamacpp", observe(client))


@pytest.mark.parametrize("format", FORMATS)
def test_llama_server(llama_server: Path, test_model: Path, tmp_path: Path, format: str) -> None:
    config = {"runtime": "llama.cpp", "path": str(test_model), "context_window": 1024, "tool_call_format": format}
    with behind(config, tmp_path, PATH=f"{llama_server.parent}{os.pathsep}{os.defpath}") as client:
        held_in_docs("llama-server", observe(client))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_llama_cpp_python(llama_cpp_python: str, test_model: Path, tmp_path: Path) -> None:
    args = ["-m", "llama_cpp.server", "--model", "{model_path}", "--model_alias", "tiny", "--port", "{port}"]
    args += ["--n_ctx", "{context_window}", "--n_threads", "{threads}", "--interrupt_requests", "false"]
    config = {"runtime": "llama-cpp-python", "path": str(test_model), "command": llama_cpp_python, "args": args}
    with behind({**config, "context_window": 1024}, tmp_path) as client:
        held_in_docs("llama_cpp.server", observe(client))


def test_mlx(mlx_python: str, mlx_model: Path, tmp_path: Path) -> None:
    script = ROOT / "gateway/engines/mlx_server.py"
    args = ["-P", str(script), "--model", "{model_path}", "--port", "{port}"]
    args += ["--context-window", "{context_window}", "--max-tokens", "{context_window}"]
    config = {"runtime": "mlx", "path": str(mlx_model), "command": mlx_python, "args": args, "context_window": 1024}
    with behind(config, tmp_path) as client:
        held_in_docs("mlx_lm.server", observe(client))


async def test_ollama(tmp_path: Path) -> None:
    """The model there does as it is told, but only when asked again."""

    def script(request: Json) -> tuple[str, list[Json]]:
        said = " ".join(message["content"] for message in request["messages"])
        if request.get("format"):
            return '{"mood": "good", "stars": 5}', []
        if "can't be used" not in said and "Paris" not in said:
            return "Hello!", []
        tools = request.get("tools") or []
        if "Paris" in said and tools:
            return "", [call("get_weather", {"city": place}) for place in ("Paris", "Rome")]
        if "JSON Schema" in said:
            return '```json\n{"mood": "bad", "stars": 0}\n```', []
        return "", [call(tools[0]["function"]["name"], {"text": "hello", "days": 1})] if tools else []

    double = OllamaDouble({"tiny": ["completion", "tools"]}, script=script)

    def asked(port: int) -> dict[str, str]:
        config = {"runtime": "ollama", "tool_call_format": "native_json", "port": port, "context_window": 4096}
        with behind(config, tmp_path) as client:
            for messages, fields, _ in CONSTRAINTS.values():
                assert client.ask(messages, fields, stream=False).status == 200
            return observe(client)

    async with double.serve() as address:
        held_in_docs("Ollama (double)", await asyncio.to_thread(asked, address.port))


def call(name: str, arguments: Json) -> Json:
    return {"id": "", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


@contextmanager
def any_other(test_model: Path, folder: Path, path: str = os.defpath, **settings: str) -> Iterator[Client]:
    """A real llama.cpp as if it were any OpenAI-compatible server: nobody knows what it holds to."""
    port = free_port()
    engine = {"runtime": "llama.cpp", "path": str(test_model), "context_window": 1024, "port": port}
    (folder / "engine").mkdir()
    with behind(engine, folder / "engine", PATH=path) as first:
        assert first.ask([HELLO], {}, stream=False).status == 200
        other = {"runtime": "openai", "base_url": f"http://127.0.0.1:{port}", "tool_call_format": "native_json"}
        with behind({**other, **settings}, folder) as client:
            yield client


def test_any_other_server(test_model: Path, tmp_path: Path, llama_server: Path) -> None:
    """The gateway learns what the server holds to: it lets a model that must call a tool call another one."""
    with any_other(test_model, tmp_path, f"{llama_server.parent}{os.pathsep}{os.defpath}") as client:
        messages, fields, _ = CONSTRAINTS["`json_schema`"]
        assert client.ask(messages, fields, stream=False).way in ("checked", "")
        messages, fields, holds = CONSTRAINTS["a tool's name"]
        assert holds(client.ask(messages, fields, stream=False))
        held_in_docs("any other", observe(client))


def test_any_other_server_that_holds_to_response_format(test_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    with any_other(test_model, tmp_path, enforcement="response_format") as client:
        held_in_docs("any other", observe(client))


@pytest.mark.some(2)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_calls_by_response_format_are_certain(test_model: Path, tmp_path: Path, stream: bool) -> None:
    """A hundred of both forms, of a model that knows no tools."""
    pytest.importorskip("xllamacpp")
    with any_other(test_model, tmp_path, enforcement="response_format") as client:
        for at in range(25):
            for name in ('`tool_choice: "required"`', "a tool's name"):
                messages, fields, holds = CONSTRAINTS[name]
                answer = client.ask(messages, {**fields, "temperature": 1, "seed": at}, stream=stream)
                assert answer.error is None, answer
                assert holds(answer), answer


def test_echo(tmp_path: Path) -> None:
    with behind({"runtime": "echo", "tool_call_format": "native_json"}, tmp_path) as client:
        held_in_docs("echo", observe(client))

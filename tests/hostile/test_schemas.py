"""Nothing that is done with a stranger's JSON Schema keeps the gateway from serving others."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.double import Exchange, Script, completion
from tests.hostile.conftest import Unharmed
from tests.hostile.running import Answer, Gateway, Upstream, configuration, started, warm
from tests.hostile.schemas import PATTERNS, deep, doubling, dynamic, generated, wide
from tests.patience import PATIENCE

Json = dict[str, Any]

GENERATED = int(os.environ.get("CTXGATE_HOSTILE_SCHEMAS", "60"))
"""How many generated schemas are sent, half as a `response_format`, half as a tool; 1000 take some minutes."""
BOMB = doubling(40)
VALUE = {"a": "a" * 40 + "!", "b": [{"n": n} for n in range(3000)]}
CHECKED = ("openai", "mlx", "llama-cpp-python", "ollama")
"""Runtimes whose answers the gateway checks."""
FORMS = ("response_format", "strict tools")


def says(text: str = json.dumps(VALUE), **call: Any) -> Script:
    """A script: an engine of any kind that answers with this text, or with a call."""
    message: Json = {"role": "assistant", "content": text}
    native: Json = {**message}
    if call:
        function = {"name": call["name"], "arguments": call["arguments"]}
        message |= {"content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}
        native["tool_calls"] = [{"function": {**function, "arguments": json.loads(call["arguments"])}}]

    async def script(exchange: Exchange) -> None:
        match exchange.path:
            case "/apply-template":
                await exchange.whole({"prompt": "Hi"})
            case "/props":
                await exchange.whole({"chat_template": "{{ tools }}"})
            case "/api/chat":
                await exchange.whole({"model": "m", "message": native, "done": True, "done_reason": "stop"})
            case "/v1/completions":
                choice = {"index": 0, "text": text, "finish_reason": "stop"}
                await exchange.whole({"id": "c", "object": "text_completion", "choices": [choice]})
            case _:
                whole = completion(text)
                whole["choices"][0]["message"] = message
                await exchange.whole(whole)

    return script


@pytest.fixture(scope="module")
def gateway(scripted: Upstream, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Model `m` and one for each runtime whose answers are checked, all the scripted engine; two more whose calls are
    read from text."""
    folder = tmp_path_factory.mktemp("gateway")
    config = configuration(scripted, folder, test_model)
    address = config["models"]["m"]["base_url"]
    config["models"] |= {runtime: {"runtime": runtime, "base_url": address} for runtime in CHECKED}
    for format in ("pythonic", "qwen3_coder"):
        config["models"][format] = {"runtime": "llama.cpp", "base_url": address, "tool_call_format": format}
    with started(folder, config) as running:
        warm(running)
        yield running


def by_schema(schema: Any) -> Json:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def by_tool(schema: Any, choice: Any = "required") -> Json:
    function = {"name": "f", "strict": True, "parameters": schema}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": choice}


def at_once(count: int, ask: Callable[[], Answer]) -> list[Answer]:
    with ThreadPoolExecutor(count) as threads:
        return [future.result(PATIENCE) for future in [threads.submit(ask) for _ in range(count)]]


def honest(gateway: Gateway, upstream: Upstream) -> None:
    """Somebody else's checked answer, and a reload."""
    upstream.script = says('{"n": 1}')
    answer = gateway.chat(**by_schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}))
    assert (answer.status, answer.json["choices"][0]["message"]["content"]) == (200, '{"n": 1}')
    assert gateway.ask("POST", "/-/reload").status == 200


def refused(answer: Answer, *reasons: str) -> None:
    error = answer.json["error"]
    assert answer.status == (413 if error["code"] == "too_many_values" else 400), answer
    assert error["category"] == "provider_invalid_request"
    reasons = (*reasons, "gave no result within 10 s")  # on a machine with much else to do
    assert any(reason in error["message"] for reason in reasons), error
    assert len(answer.body) < 3000


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("runtime", "form"),
    [(runtime, form) for runtime in CHECKED for form in FORMS if (runtime, form) != ("ollama", "response_format")],
)
def test_eight_schemas_that_take_forever(
    runtime: str, form: str, gateway: Gateway, upstream: Upstream, unharmed: Unharmed
) -> None:
    """Ollama enforces a response_format itself."""
    assert len(json.dumps(BOMB)) < 3500
    fields = by_schema(BOMB) if form == "response_format" else by_tool(BOMB)
    upstream.script = says() if form == "response_format" else says(name="f", arguments='{"a": 1}')
    with unharmed():
        # The first runtime stands for all: the others get two, which is as many as can be checked at a time.
        answers = at_once(8 if runtime == CHECKED[0] else 2, lambda: gateway.chat(model=runtime, **fields))
    assert {answer.status for answer in answers} <= {400, 429}
    refused(
        next(answer for answer in answers if answer.status == 400), "takes longer than 0.5 s", "in more than 5000 ways"
    )
    honest(gateway, upstream)


SCHEMAS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "18,000 properties": (wide(18_000), ("takes longer than 2 s", "longer than 1048576 bytes", "JSON values")),
    "50,000 properties": (wide(50_000), ("JSON values",)),
    "100 levels": (deep(100), ("nested too deeply",)),
    "400 levels": (deep(400), ("nested too deeply",)),
    "references that double as they are resolved": (dynamic(30), ("takes longer than 0.5 s",)),
    "a pattern that backtracks": ({"properties": {"a": {"pattern": PATTERNS[0]}}}, ("takes longer than 0.5 s",)),
    "a pattern that takes long to read": (
        {"pattern": "(?i)" + "[\u0100-\uffff]" * 1000}, ("takes longer than 2 s",)
    ),
    "values of an older draft, each compared with each": (
        {"$schema": "http://json-schema.org/draft-04/schema#", "enum": [{"a": n} for n in range(3000)]},
        ("takes longer than 2 s",),
    ),
    "types, each compared with each": ({"type": [{"a": n} for n in range(3000)]}, ("takes longer than 2 s",)),
    "items, each compared with each": (
        {"properties": {"b": {"uniqueItems": True}}}, ("takes longer than 0.5 s",)
    ),
    "a circle": ({"$ref": "#"}, ("nested too deeply", "takes longer")),
    "no object": ([], ("a JSON Schema is needed",)),
}  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_that_harms_nobody(name: str, gateway: Gateway, upstream: Upstream, unharmed: Unharmed) -> None:
    schema, reasons = SCHEMAS[name]
    upstream.script = says()
    with unharmed():
        answer = gateway.chat(**by_schema(schema))
    if name == "a circle" and answer.status == 422:
        return
    refused(answer, *reasons)
    assert "Traceback" not in gateway.log()


def test_a_body_nested_without_end(gateway: Gateway, unharmed: Unharmed) -> None:
    schema = b'{"properties":{"a":' * 100_000 + b"{}" + b"}}" * 100_000
    body = b'{"messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"json_schema","json_schema":'
    with unharmed():
        answer = gateway.ask("POST", "/v1/chat/completions", body + b'{"name":"n","schema":' + schema + b"}}}")
    refused(answer, "nested too deeply", "JSON values")


MERGED = {f"p{n}": {"type": "string", "maxLength": n} for n in range(400)}
GRAMMARS: dict[str, tuple[Any, int]] = {
    # A branch for each of 20 ** 6 ways.
    "strings within branches": (
        {
            "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 20} for n in range(8)} | {"d8": {}},
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/d0"}},
        },
        400,
    ),
    "properties within branches": (
        {"type": "object", "properties": {"a": {"properties": MERGED, "anyOf": [{"required": ["p1"]}] * 2000}}},
        400,
    ),
    "optional properties": (wide(5000), 200),
    "names that are all alike": ({"type": "object", "properties": {chr(0x4E00 + n): {} for n in range(4000)}}, 200),
    "a circle": ({"type": "object", "properties": {"a": {"allOf": [{"$ref": "#/properties/a"}] * 3}}}, 200),
}


@pytest.mark.parametrize("format", ["pythonic", "qwen3_coder"])
@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_that_takes_long(
    name: str, format: str, gateway: Gateway, upstream: Upstream, unharmed: Unharmed
) -> None:
    schema, status = GRAMMARS[name]
    upstream.script = says('[f(a="x")]')
    with unharmed():
        answers = at_once(2, lambda: gateway.chat(model=format, **by_tool(schema)))
    assert {answer.status for answer in answers} <= {200, 400, status}, answers[0]
    honest(gateway, upstream)


@pytest.mark.parametrize("format", ["pythonic", "qwen3_coder"])
def test_the_types_of_an_argument_that_take_long_to_find(
    format: str, gateway: Gateway, upstream: Upstream, unharmed: Unharmed
) -> None:
    parameters = {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * 10}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    call = {
        "pythonic": '[f(a="1")]',
        "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    }[format]
    upstream.script = says(call)
    with unharmed():
        answer = gateway.chat(model=format, tools=[tool])
    [made] = answer.json["choices"][0]["message"]["tool_calls"]
    assert made["function"] == {"name": "f", "arguments": '{"a":"1"}'} or json.loads(made["function"]["arguments"])


@pytest.mark.parametrize("form", ["a response_format", "a tool"])
def test_generated_schemas(form: str, gateway: Gateway, upstream: Upstream, unharmed: Unharmed) -> None:
    """Each is answered: with what the engine said, or with the schema's fault."""
    made: Callable[[Any], Json] = by_schema if form == "a response_format" else by_tool
    models = ("m", "mlx") if form == "a response_format" else ("m", "pythonic", "qwen3_coder")
    upstream.script = says() if form == "a response_format" else says("[f()]", name="f", arguments=json.dumps(VALUE))
    found: dict[int, int] = {}

    def ask(seed: int) -> None:
        answer = gateway.chat(model=models[seed % len(models)], **made(generated(seed)))
        assert answer.status in (200, 400, 422, 429), (seed, answer)
        found[answer.status] = found.get(answer.status, 0) + 1

    with unharmed(), ThreadPoolExecutor(4) as threads:
        for future in [threads.submit(ask, seed) for seed in range(GENERATED // 2)]:
            future.result(PATIENCE * 10)
    print(form, found)
    assert {200, 400} <= found.keys(), found
    assert "Traceback" not in gateway.log()
    honest(gateway, upstream)


def test_sigterm_ends_a_gateway_that_checks(upstream: Upstream, test_model: Path, tmp_path: Path) -> None:
    upstream.script = says()
    with (
        started(tmp_path, configuration(upstream, tmp_path, test_model)) as gateway,
        ThreadPoolExecutor(8) as threads,
    ):
        before = upstream.asked
        for _ in range(8):
            threads.submit(gateway.chat, **by_schema(BOMB))
        while upstream.asked == before:
            pass
        gateway.server.process.send_signal(signal.SIGTERM)
        assert gateway.server.process.wait(PATIENCE) is not None


def test_a_name_with_a_nul(gateway: Gateway, unharmed: Unharmed) -> None:
    tool = {"type": "function", "function": {"name": "f\0g", "parameters": {}}}
    with unharmed():
        refused(gateway.chat(tools=[tool]), "contains a NUL")

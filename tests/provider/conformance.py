"""Runs OpenArmature's llm-provider fixtures through the real wire mapping: only the socket is replaced.

Three kinds of directive: those asserted here; those that belong to later versions of the specification
and that the project doesn't claim (Unclaimed, a visible skip); and unknown ones (UnknownDirective, a failure).
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from gateway.errors import GatewayError
from gateway.provider import (
    AssistantMessage,
    Capabilities,
    ImageBlock,
    InlineSource,
    Message,
    OpenAIProvider,
    Response,
    RuntimeConfig,
    SystemMessage,
    TextBlock,
    TextDelta,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceForce,
    ToolMessage,
    UrlSource,
    UserMessage,
    retry,
)

SEED_FIXTURES = Path(__file__).parents[3] / "shared" / "conformance" / "openarmature"
SAMPLING = ("temperature", "max_tokens", "top_p", "seed")

FILE = {"mapping", "mock_provider", "cases", "calls", "call", "expected", "expected_wire_bytes_identical"}
CASE = {"name", "description", "mock_provider", "call", "calls", "expected"}
WIRE = {"expected_wire_request", "expected_wire_request_checks", "expected_wire_request_absent_keys"}
CALL = {"operation", "messages", "tools", "config", "response_schema", "tool_choice", "stream", "retry"}
EXPECTED = {"response", "raises", "success", "provider_call_count", "caller_messages_unmodified"}
EXPECTED_LISTED = {"invariants", "llm_spans"}
EXPECTED_UNCLAIMED = {"wire_requests", "no_token_events_emitted"}


class UnknownDirective(AssertionError):
    """The fixture asks for something that this harness has never heard of."""


class Unclaimed(Exception):
    """The fixture belongs to a part of the specification that the project doesn't claim to implement."""


@dataclass(frozen=True)
class Case:
    """One independent run: the calls of a file, or one entry of its `cases`."""

    fixture: str
    name: str
    file: dict[str, Any]
    entry: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.fixture}:{self.name}" if self.name else self.fixture

    @property
    def listed(self) -> list[str]:
        """What the fixture claims and no harness can see from outside the provider: listed, never passed."""
        found = []
        for block in (self.entry, *self.steps()):
            expected = block.get("expected") or {}
            found += expected.get("invariants", {})
            found += ["llm_spans"] if "llm_spans" in expected else []
        return list(dict.fromkeys(found))

    def steps(self) -> list[dict[str, Any]]:
        """Each call with its expectations; a case with a single `call` has them beside it."""
        if "calls" in self.entry:
            return list(self.entry["calls"])
        call = self.entry.get("call")
        if not isinstance(call, dict):
            raise UnknownDirective(f"{self.id}: neither call nor calls")
        return [{**call, **{key: self.entry[key] for key in WIRE | {"expected"} if key in self.entry}}]


def load(folder: Path) -> list[Case]:
    cases = []
    for path in sorted(folder.rglob("*.yaml")):
        document = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)
        if not isinstance(document, dict):
            raise UnknownDirective(f"{path.name} holds no mapping")
        entries = document.get("cases")
        shared = {key: document[key] for key in ("mock_provider",) if key in document}
        if entries is None:
            cases.append(Case(path.stem, "", document, {k: v for k, v in document.items() if k in FILE - {"mapping"}}))
        else:
            cases += [Case(path.stem, entry["name"], document, {**shared, **entry}) for entry in entries]
    return cases


def seed_cases() -> list[Case]:
    return load(SEED_FIXTURES) if SEED_FIXTURES.is_dir() else []


def further_cases() -> list[Case]:
    folder = os.environ.get("OPENARMATURE_FIXTURES")
    return load(Path(folder)) if folder else []


def known(block: Mapping[str, Any], allowed: Iterable[str], where: str) -> None:
    if unknown := sorted(set(block) - set(allowed)):
        raise UnknownDirective(f"{where}: unknown directive {', '.join(map(repr, unknown))}")


@dataclass
class MockServer:
    """The fixture's server: answers in order, and fails the run on a request that nobody expects."""

    script: dict[str, Any]
    bodies: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        known(self.script, {"responses", "health_endpoint", "capabilities"}, "mock_provider")
        self.left = list(self.script.get("responses") or ())

    @property
    def failing(self) -> bool:
        """Whether any answer is a refusal or a broken line, so that an error has something to keep as its cause."""
        answers = [*(self.script.get("responses") or ()), self.script.get("health_endpoint") or {}]
        return any(answer.get("connection_failure") or answer.get("status", 200) >= 400 for answer in answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        health = self.script.get("health_endpoint")
        if request.method == "GET":
            assert health is not None, "a probe that the fixture doesn't expect"
            assert request.url.path == health["path"]
            known(health, {"path", "status", "body", "connection_failure"}, "health_endpoint")
            return self.answer({k: v for k, v in health.items() if k != "path"}, request)
        assert (request.method, request.url.path) == ("POST", "/v1/chat/completions")
        self.bodies.append(request.content)
        assert self.left, "a request that the fixture doesn't expect"
        return self.answer(self.left.pop(0), request)

    def answer(self, script: dict[str, Any], request: httpx.Request) -> httpx.Response:
        known(script, {"status", "headers", "body", "stream_body", "connection_failure"}, "response")
        if script.get("connection_failure"):
            raise httpx.ConnectError("connection refused", request=request)
        headers = script.get("headers") or {}
        if "stream_body" in script:
            lines = [part if isinstance(part, str) else json.dumps(part) for part in script["stream_body"]]
            body = "".join(f"data: {line}\n\n" for line in lines)
            return httpx.Response(script["status"], headers={"content-type": "text/event-stream", **headers}, text=body)
        return httpx.Response(script["status"], headers=headers, json=script.get("body"))


async def run(case: Case) -> None:
    """Raises AssertionError where the provider differs from the fixture, Unclaimed, or UnknownDirective."""
    known(case.file, FILE, case.fixture)
    known(case.entry, CASE | WIRE | FILE, case.id)
    if (mapping := case.file.get("mapping", "openai")) != "openai":
        raise Unclaimed(f"the {mapping} mapping")
    script = case.entry.get("mock_provider") or {}
    server = MockServer(script)
    async with httpx.AsyncClient(transport=httpx.MockTransport(server)) as client:
        provider = OpenAIProvider(
            "http://mock-llm.test", bound_model(case), capabilities=capabilities(script), http_client=client
        )
        for step in case.steps():
            await run_step(provider, server, step)
    if capabilities(script).image_input:  # else the refusal may come before the answer in waiting is used
        assert not server.left, f"{len(server.left)} answers were never asked for"
    if identical := case.entry.get("expected_wire_bytes_identical"):
        assert len({server.bodies[index] for index in identical["calls"]}) == 1, "the request bodies differ"


async def run_step(provider: OpenAIProvider, server: MockServer, step: dict[str, Any]) -> None:
    known(step, CALL | WIRE | {"expected", "retry_middleware"}, "call")
    expected = step.get("expected") or {}
    known(expected, EXPECTED | EXPECTED_LISTED | EXPECTED_UNCLAIMED, "expected")
    if beyond := EXPECTED_UNCLAIMED & expected.keys():
        raise Unclaimed(", ".join(sorted(beyond)))
    sent_before = len(server.bodies)
    arguments = call_arguments(step)
    before = copy.deepcopy(arguments)
    answered = server.left[0].get("body") if server.left else None
    error: GatewayError | None = None
    response: Response[Any] | None = None
    try:
        response = await perform(provider, step, arguments)
    except GatewayError as raised:
        error = raised
    assert arguments == before, "complete() changed its arguments"
    if "raises" in expected:
        assert error is not None, f"nothing was raised, {expected['raises']['category']} was expected"
        check_error(error, expected["raises"], server.failing)
    elif error is not None:
        raise AssertionError(f"raised {error.category}: {error.message}") from error
    if "response" in expected:
        assert response is not None
        check_response(response, expected["response"])
        if not step.get("stream") and len(server.bodies) == sent_before + 1:
            assert response.raw == answered, "raw is not the server's body"
    if "success" in expected:
        assert expected["success"] is True
        assert step["operation"] == "ready"
    if "provider_call_count" in expected:
        assert len(server.bodies) - sent_before == expected["provider_call_count"]
    check_wire(step, server.bodies[sent_before:])


async def perform(provider: OpenAIProvider, step: dict[str, Any], arguments: dict[str, Any]) -> Response[Any] | None:
    if step["operation"] == "ready":
        await provider.ready()
        return None
    if step["operation"] != "complete":
        raise UnknownDirective(f"operation {step['operation']!r}")

    async def call() -> Response[Any]:
        if not step.get("stream"):
            whole: Response[Any] = await provider.complete(**arguments)
            return whole
        async with await provider.complete(**arguments, stream=True) as stream:
            *events, last = [event async for event in stream]
        assert isinstance(last, Response)
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == last.message.content
        return last

    policy = step.get("retry") or step.get("retry_middleware")
    if policy is None:
        return await call()
    known(policy, {"max_attempts", "backoff", "classifier", "per_attempt_override", "reask"}, "retry")
    if beyond := {"per_attempt_override", "reask"} & policy.keys():
        raise Unclaimed(f"retry with {', '.join(sorted(beyond))}")
    assert policy.get("classifier", "default") == "default"
    pause = policy.get("backoff", {"type": "deterministic", "seconds": 0})
    assert pause["type"] == "deterministic"
    return await retry(call, max_attempts=policy["max_attempts"], backoff=lambda _: float(pause["seconds"]))


def check_error(error: GatewayError, expected: dict[str, Any], failing: bool) -> None:
    known(expected, {"category", "retry_after_seconds", "carries", "message"}, "raises")
    assert error.category == expected["category"], error.message
    if failing and error.category != "provider_invalid_response" and not error.param:
        assert error.__cause__ is not None, "the cause was lost"
    if "retry_after_seconds" in expected:
        assert error.retry_after == expected["retry_after_seconds"]
    if "message" in expected:
        assert expected["message"] in error.message
    for name, value in expected.get("carries", {}).items():
        if name.endswith("_present"):
            assert bool(carried(error, name.removesuffix("_present"))) is value
        elif name.endswith("_mentions"):
            assert value in carried(error, name.removesuffix("_mentions"))
        else:
            subset(value, carried(error, name), name)


def carried(error: GatewayError, name: str) -> Any:
    names = {"response_schema", "output_content", "error_message", "finish_reason", "usage"}
    if name not in names:
        raise UnknownDirective(f"carries.{name}")
    value = getattr(error, "message" if name == "error_message" else name)
    return asdict(value) if name == "usage" else value


def check_response(response: Response[Any], expected: dict[str, Any]) -> None:
    known(expected, {"message", "finish_reason", "usage", "parsed", "raw_check"}, "response")
    check = expected.get("raw_check", {"required_keys": []})
    known(check, {"required_keys"}, "raw_check")
    assert not set(check["required_keys"]) - response.raw.keys()
    message = expected.get("message", {})
    known(message, {"role", "content", "tool_calls"}, "message")
    if isinstance(message.get("content"), list):
        raise Unclaimed("content blocks in an assistant message")
    if "role" in message:
        assert response.message.role == message["role"]
    if "content" in message:
        assert response.message.content == (message["content"] or "")  # null and "" are the same content
    if "tool_calls" in message:
        calls = [asdict(call) for call in response.message.tool_calls]
        assert calls == (message["tool_calls"] or [])
    if "finish_reason" in expected:
        assert response.finish_reason == expected["finish_reason"]
    if "usage" in expected:
        subset(expected["usage"], asdict(response.usage), "usage")
    if "parsed" in expected:
        assert response.parsed == expected["parsed"]


def check_wire(step: dict[str, Any], bodies: Sequence[bytes]) -> None:
    if not WIRE & step.keys():
        return
    assert len(bodies) == 1, "the fixture describes exactly one request"
    body = json.loads(bodies[0])
    if "expected_wire_request" in step:
        literal(step["expected_wire_request"], body, "request")
    for key in step.get("expected_wire_request_absent_keys", ()):
        assert key not in body
    for check, value in step.get("expected_wire_request_checks", {}).items():
        assert value is True
        if check == "system_message_content_references_schema":
            assert all(name in body["messages"][0]["content"] for name in step["response_schema"]["properties"])
        elif check.endswith("_absent"):
            assert check.removesuffix("_absent") not in body
        else:
            raise UnknownDirective(f"expected_wire_request_checks.{check}")


def literal(expected: Any, actual: Any, where: str) -> None:
    """Every key and no other. "*" stands for any text; arguments are the same text of JSON if they mean the same."""
    if expected == "*":
        assert isinstance(actual, str), where
        assert actual, where
    elif isinstance(expected, dict):
        assert isinstance(actual, dict), where
        assert actual.keys() == expected.keys(), where
        for key, value in expected.items():
            if key == "arguments":
                assert isinstance(actual[key], str), where
                assert json.loads(actual[key]) == json.loads(value), where
            else:
                literal(value, actual[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert isinstance(actual, list), where
        assert len(actual) == len(expected), where
        for index, value in enumerate(expected):
            literal(value, actual[index], f"{where}[{index}]")
    else:
        assert type(actual) is type(expected), where
        assert actual == expected, where


def subset(expected: Any, actual: Any, where: str) -> None:
    if isinstance(expected, dict):
        assert isinstance(actual, Mapping), where
        for key, value in expected.items():
            assert key in actual, f"{where}.{key}"
            subset(value, actual[key], f"{where}.{key}")
    else:
        assert actual == expected, where


def bound_model(case: Case) -> str:
    for step in case.steps():
        if model := (step.get("expected_wire_request") or {}).get("model"):
            return str(model)
    for answer in (case.entry.get("mock_provider") or {}).get("responses") or ():
        if isinstance(body := answer.get("body"), dict) and "model" in body:
            return str(body["model"])
    return "test-model"


def capabilities(script: dict[str, Any]) -> Capabilities:
    stated = script.get("capabilities") or {}
    known(stated, {"supports_image_input", "supports_native_response_format"}, "capabilities")
    return Capabilities(
        image_input=stated.get("supports_image_input", True),
        native_response_format=stated.get("supports_native_response_format"),
    )


def call_arguments(step: dict[str, Any]) -> dict[str, Any]:
    if step["operation"] == "ready":
        return {}
    arguments: dict[str, Any] = {"messages": [message(entry) for entry in step["messages"]]}
    if "tools" in step:
        arguments["tools"] = [Tool(**entry) for entry in step["tools"]]
    if "config" in step:
        given = {k: v for k, v in step["config"].items() if k != "extras"}
        extra = {k: v for k, v in given.items() if k not in SAMPLING} | step["config"].get("extras", {})
        arguments["config"] = RuntimeConfig(**{k: v for k, v in given.items() if k in SAMPLING}, extra=extra)
    if "response_schema" in step:
        arguments["response_schema"] = step["response_schema"]
    if "tool_choice" in step:
        arguments["tool_choice"] = tool_choice(step["tool_choice"])
    return arguments


def tool_choice(given: Any) -> ToolChoice:
    if isinstance(given, dict):
        known(given, {"type", "name"}, "tool_choice")
        assert given["type"] == "tool"
        return ToolChoiceForce(given["name"])
    return given  # type: ignore[no-any-return]


def message(entry: dict[str, Any]) -> Message:
    known(entry, {"role", "content", "tool_calls", "tool_call_id"}, "message")
    content = entry.get("content")
    match entry["role"]:
        case "system":
            return SystemMessage(content)  # type: ignore[arg-type]
        case "user":
            return UserMessage([block(part) for part in content] if isinstance(content, list) else content)  # type: ignore[arg-type]
        case "tool":
            return ToolMessage(content, entry["tool_call_id"])  # type: ignore[arg-type]
        case "assistant":
            if isinstance(content, list):
                raise Unclaimed("content blocks in an assistant message")
            return AssistantMessage(content or "", [ToolCall(**call) for call in entry.get("tool_calls") or ()])
    raise UnknownDirective(f"role {entry['role']!r}")


def block(entry: dict[str, Any]) -> TextBlock | ImageBlock:
    if entry["type"] == "text":
        return TextBlock(entry["text"])
    if entry["type"] != "image":
        raise UnknownDirective(f"content block {entry['type']!r}")
    known(entry, {"type", "source", "media_type", "detail"}, "image block")
    source = {k: v for k, v in entry.get("source", {}).items() if k != "type"}
    kinds: dict[str | None, Any] = {"url": UrlSource, "inline": InlineSource, None: lambda: None}
    kind = entry.get("source", {}).get("type")
    return ImageBlock(kinds[kind](**source), entry.get("media_type"), entry.get("detail"))

"""One suite of requests, for an engine alone and for the same engine behind ctxgate.

Each check answers with a few words: what the server did.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from tests.patience import PATIENCE

Json = dict[str, Any]

WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}
ASK: Json = {"role": "user", "content": "What is the weather in Paris in celsius?"}
HELLO: Json = {"role": "user", "content": "Say hello."}
CALL: Json = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris", "unit": "celsius"}'},
}
RESULT: Json = {"role": "tool", "tool_call_id": "call_1", "content": "22"}
OVERSIZE: Json = {"role": "user", "content": "word " * 3000}
ARGUMENTS = ({"city": "Paris"}, {"city": "Paris", "unit": "celsius"})


class Server:
    """An OpenAI-compatible server at `url`, whose model has that name."""

    def __init__(self, url: str, model: str) -> None:
        self.model = model
        # llama-server closes idle connections after 5 s; a request could meet one that just went.
        self._http = httpx.Client(base_url=url, timeout=PATIENCE, limits=httpx.Limits(max_keepalive_connections=0))

    def close(self) -> None:
        self._http.close()

    def get(self, path: str) -> httpx.Response:
        return self._http.get(path)

    def post(self, **body: Any) -> httpx.Response:
        """A chat with this body: `json` or `content`, as httpx takes it."""
        return self._http.post("/v1/chat/completions", **body)

    def ask(self, *messages: Json, **fields: Any) -> httpx.Response:
        body = {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": 48, **fields}
        return self.post(json=body)

    def stream(self, *messages: Json, **fields: Any) -> list[Json]:
        """The chunks. Raises httpx.HTTPStatusError for an error status, AssertionError for a stream without end."""
        response = self.ask(*messages, stream=True, **fields).raise_for_status()
        events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
        assert events, "an empty stream"
        assert events[-1] == "[DONE]", events[-1]
        return [json.loads(event) for event in events[:-1]]


def _calls(message: Json) -> list[Any]:
    return [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls") or ()]


def _said(response: httpx.Response, *, ok: str = "ok") -> str:
    """`ok`, or the status with the error's code if that says more."""
    if response.status_code == 200:
        return ok
    try:
        error = response.json().get("error")
    except ValueError:
        error = None
    code = error.get("code") if isinstance(error, dict) else None
    more = f" `{code}`" if code in ("context_length_exceeded", "model_not_found") else ""
    return f"{response.status_code}{more}"


def models(server: Server) -> str:
    listed = server.get("/v1/models")
    if listed.status_code != 200 or not listed.content:
        return "empty"
    return "ok" if server.model in [model["id"] for model in listed.json()["data"]] else "other names"


def chat(server: Server) -> str:
    response = server.ask(HELLO)
    if response.status_code != 200:
        return _said(response)
    (choice,) = response.json()["choices"]
    assert choice["message"]["content"]
    assert choice["finish_reason"] in ("stop", "length")
    return "ok"


def streamed_chat(server: Server) -> str:
    whole = server.ask(HELLO).json()["choices"][0]
    frames = [frame for chunk in server.stream(HELLO) for frame in chunk["choices"]]
    assert "".join(frame["delta"].get("content") or "" for frame in frames) == whole["message"]["content"]
    assert [frame["finish_reason"] for frame in frames if frame["finish_reason"]] == [whole["finish_reason"]]
    roles = sum("role" in frame["delta"] for frame in frames)
    return "ok" if roles == 1 else "the role in every delta"


def streamed_usage(server: Server) -> str:
    chunks = server.stream(HELLO, stream_options={"include_usage": True})
    return "ok" if any(chunk.get("usage") for chunk in chunks) else "never"


def tool_call(server: Server) -> str:
    response = server.ask(ASK, tools=[WEATHER])
    if response.status_code != 200:
        return _said(response)
    (choice,) = response.json()["choices"]
    message = choice["message"]
    if not message.get("tool_calls"):
        assert "get_weather" in message["content"], message
        return "raw text"
    (arguments,) = _calls(message)
    assert arguments in ARGUMENTS
    assert all(call["id"] and call["type"] == "function" for call in message["tool_calls"])
    return "ok" if choice["finish_reason"] == "tool_calls" else f"finish_reason {choice['finish_reason']}"


def streamed_tool_call(server: Server) -> str:
    frames = [frame for chunk in server.stream(ASK, tools=[WEATHER]) for frame in chunk["choices"]]
    deltas = [call for frame in frames for call in frame["delta"].get("tool_calls") or ()]
    if not deltas:
        assert "get_weather" in "".join(frame["delta"].get("content") or "" for frame in frames)
        return "raw text"
    assert deltas[0]["id"]
    assert deltas[0]["function"]["name"] == "get_weather"
    assert json.loads("".join(delta["function"].get("arguments") or "" for delta in deltas)) in ARGUMENTS
    assert {delta["index"] for delta in deltas} == {0}
    assert [frame["finish_reason"] for frame in frames if frame["finish_reason"]] == ["tool_calls"]
    return "in pieces" if len(deltas) > 2 else "at once"


def round_trip(server: Server) -> str:
    response = server.ask(ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT, tools=[WEATHER])
    if response.status_code == 200:
        message = response.json()["choices"][0]["message"]
        assert message["content"]
        assert not message.get("tool_calls")
    return _said(response)


def tool_choice_none(server: Server) -> str:
    response = server.ask(ASK, tools=[WEATHER], tool_choice="none")
    if response.status_code != 200:
        return _said(response)
    message = response.json()["choices"][0]["message"]
    if message.get("tool_calls"):
        return "a call all the same"
    return "a raw call in the text" if "get_weather(" in (message["content"] or "") else "ok"


def developer(server: Server) -> str:
    return _said(server.ask({"role": "developer", "content": "Be brief."}, HELLO))


def past_refusal(server: Server) -> str:
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I won't say."}]}
    return _said(server.ask(HELLO, refusal, {"role": "user", "content": "Why?"}))


def max_completion_tokens(server: Server) -> str:
    body = {"model": server.model, "messages": [ASK], "temperature": 0, "max_completion_tokens": 2}
    response = server.post(json=body)
    if response.status_code != 200:
        return _said(response)
    return "ok" if response.json()["usage"]["completion_tokens"] <= 2 else "ignored"


def wrong_type(server: Server) -> str:
    return _said(server.ask(HELLO, temperature="hot"))


def no_role(server: Server) -> str:
    return _said(server.ask({"content": "x"}))


def broken_arguments(server: Server) -> str:
    broken = {**CALL, "function": {**CALL["function"], "arguments": '{"city": '}}
    return _said(server.ask(ASK, {"role": "assistant", "content": "", "tool_calls": [broken]}, RESULT))


def not_json(server: Server) -> str:
    return _said(server.post(content=b'{"messages": [', headers=JSON))


def oversize(server: Server) -> str:
    response = server.ask(OVERSIZE)
    if response.status_code == 400:
        error = response.json()["error"]
        # The gateway names both numbers.
        assert "category" not in error or error["prompt_tokens"] > error["context_window"] > 0
    return _said(response, ok="cut in silence")


def streamed_oversize(server: Server) -> str:
    response = server.ask(OVERSIZE, stream=True)
    if response.status_code == 200 and "data:" not in response.text:
        return "200 and nothing"
    return _said(response, ok="cut in silence")


def unknown_model(server: Server) -> str:
    return _said(server.ask(HELLO, model="nope"), ok="answers as its own")


JSON = {"Content-Type": "application/json"}

Check = Callable[[Server], str]

CHECKS: Mapping[str, Check] = {
    "`/v1/models`": models,
    "chat": chat,
    "streamed chat": streamed_chat,
    "streamed usage": streamed_usage,
    "tool call": tool_call,
    "streamed tool call": streamed_tool_call,
    "tool round trip": round_trip,
    '`tool_choice: "none"`': tool_choice_none,
    "role `developer`": developer,
    "a past refusal": past_refusal,
    "`max_completion_tokens`": max_completion_tokens,
    "a wrong type": wrong_type,
    "a message without role": no_role,
    "broken past arguments": broken_arguments,
    "no JSON": not_json,
    "oversize prompt": oversize,
    "the same, streamed": streamed_oversize,
    "unknown model": unknown_model,
}


def observe(server: Server) -> dict[str, str]:
    """Each check's result; a failed check says why."""
    seen = {}
    for name, check in CHECKS.items():
        try:
            seen[name] = check(server)
        except httpx.HTTPStatusError as error:
            seen[name] = _said(error.response)
        except httpx.TransportError as error:
            seen[name] = type(error).__name__
        except AssertionError as error:
            seen[name] = f"broken: {error}"
    return seen

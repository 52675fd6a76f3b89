"""The scripted conversation: what is asked, what the upstream answers, what must come out.

The prompt *is* the script (a `Script` as JSON), so it passes through any proxy and the upstream
needs no side channel. Chunks have the shape and size of llama-server's.
"""

import functools
import json
from dataclasses import asdict, dataclass
from typing import Any

MODEL = "bench"
TOOL = {
    "type": "function",
    "function": {
        "name": "write_note",
        "description": "Store a note.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
    },
}
_ANSWER_TEXT = " ".join(f"Sentence {i} of a plain answer." for i in range(12))
_FRAME = {
    "created": 1795293452,
    "id": "chatcmpl-NX1H3Uq5cJaBb3r5ZsJGRE4I809zoary",
    "model": MODEL,
    "system_fingerprint": "b0-unknown",
}


class BadAnswer(Exception):
    """A proxy answered with something else than the upstream sent."""


@dataclass(frozen=True)
class Script:
    """One streamed answer: `chunks` deltas of text, one each `every_ms` (0: as fast as they go).

    A `held` one stops after its first delta until `GET /go`, so that a measurement can begin when
    all its streams are open and idle.
    """

    chunks: int
    every_ms: float = 0.0
    held: bool = False
    tool_call: bool = False


def request_body(script: Script | None, tier: str | None = None) -> bytes:
    """A chat request that declares a tool; streamed when there is a script. tier: its service tier."""
    prompt = "whole" if script is None else json.dumps(asdict(script))
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "You are terse. Call a tool where one fits."},
            {"role": "user", "content": prompt},
        ],
        "tools": [TOOL],
        "temperature": 0.2,
        "max_tokens": 4096,
        "stream": script is not None,
        **({} if tier is None else {"service_tier": tier}),
    }
    return json.dumps(body).encode()


def read_request(body: bytes) -> Script | None:
    """The upstream's side of `request_body`; None asks for a whole answer."""
    prompt = json.loads(body)["messages"][-1]["content"]
    if isinstance(prompt, list):  # some proxies turn text into content parts
        prompt = prompt[0]["text"]
    return None if prompt == "whole" else Script(**json.loads(prompt))


def words(script: Script) -> list[str]:
    """The text of each delta. A tool call is one pythonic call with one long string argument."""
    if not script.tool_call:
        return [f" w{i:04d}" for i in range(script.chunks)]
    inner = [f" w{i:04d}" for i in range(script.chunks - 2)]
    return ['<|tool_call_start|>[write_note(text="', *inner, '")]<|tool_call_end|>']


FIRST_WORD = b'" w0000"'


def whole_answer() -> bytes:
    usage = {"prompt_tokens": 60, "completion_tokens": 80, "total_tokens": 140}
    message = {"role": "assistant", "content": _ANSWER_TEXT}
    choice = {"finish_reason": "stop", "index": 0, "message": message}
    answer = {"choices": [choice], **_FRAME, "object": "chat.completion", "usage": usage}
    return json.dumps(answer, separators=(",", ":")).encode()


@functools.lru_cache(maxsize=16)
def events(script: Script) -> tuple[bytes, ...]:
    """The SSE events of the answer in order: role, deltas, finish, `[DONE]`."""

    def event(delta: dict[str, Any], finish: str | None) -> bytes:
        choice = {"finish_reason": finish, "index": 0, "delta": delta}
        chunk = {"choices": [choice], **_FRAME, "object": "chat.completion.chunk"}
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    return (
        event({"role": "assistant", "content": None}, None),
        *(event({"content": word}, None) for word in words(script)),
        event({}, "stop"),
        b"data: [DONE]\n\n",
    )


def check_whole(body: bytes) -> None:
    """Raises `BadAnswer` unless this is the whole answer."""
    try:
        choice = json.loads(body)["choices"][0]
        same = choice["message"]["content"] == _ANSWER_TEXT and choice["finish_reason"] == "stop"
    except (ValueError, LookupError, TypeError) as error:
        raise BadAnswer(f"not a chat completion: {body[:200]!r}") from error
    if not same:
        raise BadAnswer(f"another answer than the upstream's: {body[:200]!r}")


def check_stream(body: bytes, script: Script) -> None:
    """Raises `BadAnswer` unless every delta came, alone and in order, then finish and `[DONE]`.

    A tool call must come out as OpenAI's, with the arguments that its native text has.
    """
    data = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
    if not data or data[-1] != b"[DONE]":
        raise BadAnswer(f"no [DONE] at the end, but {body[-200:]!r}")
    try:
        choices = [c for event in data[:-1] for c in json.loads(event)["choices"]]
        deltas = [text for c in choices if (text := c["delta"].get("content"))]
        calls = [call["function"] for c in choices for call in c["delta"].get("tool_calls") or ()]
        finishes = [c["finish_reason"] for c in choices if c.get("finish_reason")]
    except (ValueError, LookupError, TypeError) as error:
        raise BadAnswer(f"not a chunk: {error}") from error
    wanted = "tool_calls" if script.tool_call else "stop"
    if finishes != [wanted]:
        raise BadAnswer(f"finish_reason {finishes}, not one {wanted!r}")
    if script.tool_call:
        arguments = "".join(call.get("arguments") or "" for call in calls)
        if arguments.count(" w") != script.chunks - 2:
            raise BadAnswer(f"arguments {arguments[:80]!r}...: not the {script.chunks - 2} words that were sent")
    elif deltas != words(script):
        raise BadAnswer(f"{len(deltas)} deltas, not the {script.chunks} that were sent")

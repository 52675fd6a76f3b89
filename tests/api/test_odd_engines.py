"""What engines write that isn't as OpenAI's API has it: every API gives its clients the same sound answer, whole and
streamed.

Half characters, invalid UTF-8 and numbers that JSON doesn't have; fields that are missing, empty or of another kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.api.asking import WEATHER, frames
from tests.api.published import check
from tests.gateway.client import Answer
from tests.gateway.double import DONE, Exchange, Json, chunk, chunked, completion
from tests.gateway.running import Running, running

USAGE: Json = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
SLOT = "@@"
"""In JSON, stands for what a case puts there byte for byte."""

SAY = [{"role": "user", "content": "Hi"}]
PARAMETERS = {"name": "f", "parameters": WEATHER}
REQUESTS: dict[str, tuple[str, Json]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": SAY, "tools": [{"type": "function", "function": PARAMETERS}], "reasoning_effort": "low"},
    ),
    "responses": ("/v1/responses", {"input": SAY, "tools": [{"type": "function", **PARAMETERS}]}),
    "messages": (
        "/v1/messages",
        {
            "max_tokens": 2000,
            "messages": SAY,
            "tools": [{"name": "f", "input_schema": WEATHER}],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
    ),
    "Ollama": (
        "/api/chat",
        {"messages": SAY, "tools": [{"type": "function", "function": PARAMETERS}], "think": True},
    ),
}


@dataclass
class Said:
    """What a client gets of an answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    reason: str = ""
    usage: tuple[int, int] = (0, 0)


@dataclass
class Engine:
    """Answers each chat with the payloads, whole ones with `body`. Knows nothing else."""

    payloads: list[bytes] = field(default_factory=list)
    body: bytes = b"{}"
    kind: str = "events"
    network: int = 1 << 20
    """Bytes of a stream in one write."""

    async def answer(self, exchange: Exchange) -> None:
        asked = exchange.json if exchange.body else {}
        if exchange.path not in ("/v1/chat/completions", "/v1/completions", "/api/chat"):
            await exchange.whole({"prompt": "Hi", "version": "0.12.6", "capabilities": ["tools", "thinking"]})
        elif not asked.get("stream"):
            await exchange.whole(self.body)
        else:
            await exchange.start()
            form = b"data: %b\n\n" if self.kind == "events" else b"%b\n"
            stream = b"".join([form % each for each in self.payloads]) + (DONE if self.kind == "events" else b"")
            for at in range(0, len(stream), self.network):
                await exchange.send(chunked(stream[at : at + self.network]))
            await exchange.send(b"0\r\n\r\n")


def served(engine: Engine, runtime: str, format: str = "native_json") -> AbstractAsyncContextManager[Running]:
    return running(engine.answer, runtime=runtime, tool_call_format=format)


async def asked(gateway: Running, api: str, *, stream: bool) -> Said:
    path, body = REQUESTS[api]
    wish = {"stream_options": {"include_usage": True}} if api == "chat" and stream else {}
    answer = await gateway.ask({"model": "m", "stream": stream, **wish, **body}, path)
    assert answer.status == 200, answer.body
    answer.body.decode()
    return READERS[api, stream](answer)


def strict(answer: bytes) -> Any:
    """JSON that every client reads."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(answer.decode(), parse_constant=refuse)
    json.dumps(found, ensure_ascii=False).encode()  # raises if a text has half a character
    return found


def of_chat(answer: Answer) -> Said:
    found = strict(answer.body)
    check("openai.types.chat:ChatCompletion", found)
    [choice] = found["choices"]
    said, usage = choice["message"], found.get("usage") or {}
    calls = [(call["function"]["name"], strict(call["function"]["arguments"].encode())) for call in _calls(said)]
    counts = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return Said(said["content"] or "", said.get("reasoning") or "", calls, choice["finish_reason"], counts)


def _calls(said: Json) -> list[Json]:
    return said.get("tool_calls") or []


def of_chat_stream(answer: Answer) -> Said:
    assert answer.body.endswith(b"data: [DONE]\n\n")
    said, calls, roles = Said(), dict[int, list[str]](), []
    payloads = [event.removeprefix("data: ") for event in answer.body.decode().split("\n\n")[:-2]]
    for found in [strict(payload.encode()) for payload in payloads]:
        check("openai.types.chat:ChatCompletionChunk", found)
        if usage := found.get("usage"):
            said.usage = usage["prompt_tokens"], usage["completion_tokens"]
        for choice in found["choices"]:
            delta = choice["delta"]
            roles += [delta["role"]] if delta.get("role") is not None else []
            said.content += delta.get("content") or ""
            said.reasoning += delta.get("reasoning") or ""
            said.reason = choice.get("finish_reason") or said.reason
            for call in _calls(delta):
                name, arguments = call["function"].get("name") or "", call["function"].get("arguments") or ""
                parts = calls.setdefault(call["index"], ["", ""])
                calls[call["index"]] = [parts[0] + name, parts[1] + arguments]
    assert roles == ["assistant"]
    said.calls = [(name, strict(arguments.encode())) for name, arguments in calls.values()]
    return said


def of_response(answer: Answer) -> Said:
    return _of_response(strict(answer.body))


def _of_response(found: Json) -> Said:
    said = Said(reason="stop" if found["status"] == "completed" else str(found["incomplete_details"]))
    for item in found["output"]:
        if item["type"] == "message":
            said.content += "".join(part["text"] for part in item["content"])
        elif item["type"] == "reasoning":
            said.reasoning += "".join(part["text"] for part in [*item["summary"], *(item.get("content") or ())])
        else:
            said.calls.append((item["name"], strict(item["arguments"].encode())))
    usage = found["usage"] or {}
    said.usage = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    return said


def of_response_stream(answer: Answer) -> Said:
    events = [strict(json.dumps(data).encode()) for _, data in frames(answer)]
    assert events[-1]["type"] == "response.completed", events[-1]
    said = _of_response(events[-1]["response"])
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == said.content
    arguments = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert [strict("".join(arguments).encode())] == [call for _, call in said.calls] if arguments else not said.calls
    return said


def of_message(answer: Answer) -> Said:
    found = strict(answer.body)
    said = Said(reason=found["stop_reason"])
    for block in found["content"]:
        said.content += block.get("text", "")
        said.reasoning += block.get("thinking", "")
        said.calls += [(block["name"], block["input"])] if block["type"] == "tool_use" else []
    said.usage = found["usage"]["input_tokens"], found["usage"]["output_tokens"]
    return said


def of_message_stream(answer: Answer) -> Said:
    said, names, arguments = Said(), list[str](), ""
    for kind, event in frames(answer):
        strict(json.dumps(event).encode())
        assert kind != "error", event
        if kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
            names.append(event["content_block"]["name"])
        elif kind == "content_block_delta":
            delta = event["delta"]
            said.content += delta.get("text", "")
            said.reasoning += delta.get("thinking", "")
            arguments += delta.get("partial_json", "")
        elif kind == "message_delta":
            said.reason = event["delta"]["stop_reason"]
            said.usage = event["usage"]["input_tokens"], event["usage"]["output_tokens"]
    said.calls = [(name, strict(arguments.encode() or b"{}")) for name in names]
    return said


def of_ollama(answer: Answer) -> Said:
    said = Said()
    for line in answer.body.splitlines():
        found = strict(line)
        assert "error" not in found, found
        message = found["message"]
        said.content += message["content"]
        said.reasoning += message.get("thinking", "")
        said.calls += [(call["function"]["name"], call["function"]["arguments"]) for call in _calls(message)]
        if found["done"]:
            said.reason = found["done_reason"]
            said.usage = found["prompt_eval_count"], found["eval_count"]
    return said


READERS = {
    ("chat", False): of_chat,
    ("chat", True): of_chat_stream,
    ("responses", False): of_response,
    ("responses", True): of_response_stream,
    ("messages", False): of_message,
    ("messages", True): of_message_stream,
    ("Ollama", False): of_ollama,
    ("Ollama", True): of_ollama,
}


async def same(gateway: Running, api: str, case: object, *, usage: bool = True) -> Said:
    """What a client gets whole, which has to be what it gets streamed."""
    try:
        whole, stream = [await asked(gateway, api, stream=stream) for stream in (False, True)]
    except Exception as error:
        raise AssertionError(f"{case}: {error!r}") from error
    if not usage:
        whole.usage = stream.usage = (0, 0)
    assert stream == whole, case
    return whole


# Characters

CHARACTERS: dict[str, tuple[list[bytes], str]] = {
    "an emoji in two escapes": ([rb"a\ud83d", rb"\ude00b"], "a\U0001f600b"),
    "one in two chunks among others": ([rb"a\ud83d\ude00\ud83d", rb"\udc80b"], "a\U0001f600\U0001f480b"),
    "nothing between its halves": ([rb"a\ud83d", b"", rb"\uDE00b"], "a\U0001f600b"),
    "its first half alone": ([rb"a\ud83d", b"b"], "a\ufffdb"),
    "its first half at the end": ([b"a", rb"b\ud83d"], "ab\ufffd"),
    "its second half alone": ([b"a", rb"\ude00b"], "a\ufffdb"),
    "its first half twice": ([rb"a\ud83d", rb"\ud83d", rb"\ude00"], "a\ufffd\U0001f600"),
    "its halves in turn": ([rb"\ude00\ud83d", b"a"], "\ufffd\ufffda"),
    "UTF-8 cut between events": ([b"a\xf0\x9f", b"\x98\x80b"], "a\U0001f600b"),
    "each byte an event": ([b"\xe2", b"\x82", b"\xac"], "\u20ac"),
    "UTF-8 cut for good": ([b"a\xf0\x9f", b"b"], "a\ufffdb"),
    "UTF-8 cut at the end": ([b"a", b"b\xf0\x9f\x98"], "ab\ufffd"),
    "a byte that is never UTF-8": ([b"a\xff", b"b"], "a\ufffdb"),
    "a surrogate in UTF-8": ([b"a\xed\xa0\xbd", b"b"], "a\ufffd\ufffd\ufffdb"),
    "a byte order mark within": ([b"a\xef\xbb\xbf", b"b"], "a\ufeffb"),
    "a noncharacter": ([b"a\xef\xbf\xbf", rb"\uffff"], "a\uffff\uffff"),
}
CONTROLS: dict[str, tuple[list[bytes], str]] = {
    "NUL": ([rb"a\u0000", b"b"], "a\0b"),
    "NUL without an escape": ([b"a\0", b"b"], "a\0b"),
    "a control character without an escape": ([b"a\x01\x1f", b"b"], "a\x01\x1fb"),
}
FIELDS = ("content", "reasoning", "arguments")


def native(arguments: str, *, first: bool = True) -> list[Json]:
    named = {"id": "c", "type": "function"} if first else {}
    return [{"index": 0, **named, "function": {**({"name": "f"} if first else {}), "arguments": arguments}}]


def filled(body: Json, part: bytes) -> bytes:
    return json.dumps(body).encode().replace(SLOT.encode(), part)


def delta(field: str, text: str, *, first: bool) -> Json:
    if field == "arguments":
        return chunk(tool_calls=native(text, first=first))
    return chunk(text) if field == "content" else chunk(reasoning_content=text)


def in_events(engine: Engine, field: str, parts: list[bytes]) -> None:
    """The parts in one field of OpenAI's API, streamed and whole."""
    head, tail = ('{"city":"', '"}') if field == "arguments" else ("", "")
    # fmt: off
    engine.payloads = [
        filled(chunk("", role="assistant"), b""), filled(delta(field, head, first=True), b""),
        *[filled(delta(field, SLOT, first=False), part) for part in parts],
        *([filled(delta(field, tail, first=False), b"")] if tail else []),
        filled(chunk(reason="stop"), b""), json.dumps({**chunk(), "choices": [], "usage": USAGE}).encode(),
    ]
    # fmt: on
    messages: dict[str, Json] = {
        "content": {"content": SLOT},
        "reasoning": {"content": "", "reasoning_content": SLOT},
        "arguments": {"content": None, "tool_calls": native(head + SLOT + tail)},
    }
    engine.body = filled({**completion(**messages[field]), "usage": USAGE}, b"".join(parts))
    engine.kind = "events"


def in_lines(engine: Engine, field: str, parts: list[bytes]) -> None:
    """The same in Ollama's API, which writes a call in one piece."""

    def line(part: bytes, *, done: bool = False) -> bytes:
        message: Json = {"role": "assistant", "content": SLOT if field == "content" else ""}
        if field == "reasoning":
            message["thinking"] = SLOT
        elif field == "arguments" and part:
            message["tool_calls"] = [{"id": "c", "function": {"name": "f", "arguments": {"city": SLOT}}}]
        ends = {"done_reason": "stop", "prompt_eval_count": 3, "eval_count": 4} if done else {}
        return filled({"model": "m", "created_at": "x", "message": message, "done": done, **ends}, part)

    whole = b"".join(parts)
    engine.body = line(whole, done=True)
    engine.payloads = [line(part) for part in ([whole] if field == "arguments" else parts)] + [line(b"", done=True)]
    engine.kind = "lines"


RUNTIMES = ("openai", "llama.cpp", "ollama")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_characters_arrive_whole_or_replaced(runtime: str, field: str) -> None:
    engine = Engine()
    cases = CHARACTERS if field == "arguments" else {**CHARACTERS, **CONTROLS}
    async with served(engine, runtime) as gateway:
        for api in REQUESTS:
            for name, (parts, text) in cases.items():
                (in_lines if runtime == "ollama" else in_events)(engine, field, parts)
                said = await same(gateway, api, (api, name))
                found = said.calls[0][1]["city"] if field == "arguments" else getattr(said, field)
                assert found == text, (api, name)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("network", [1, 3])
async def test_characters_cut_between_two_reads(runtime: str, network: int) -> None:
    engine = Engine(network=network)
    text = "a\u00e9\u20ac\U0001f600"
    (in_lines if runtime == "ollama" else in_events)(
        engine, "content", [text.encode(), json.dumps(text)[1:-1].encode()]
    )
    async with served(engine, runtime) as gateway:
        for api in REQUESTS:
            assert (await same(gateway, api, api)).content == text * 2


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_byte_order_mark_before_an_answer(runtime: str) -> None:
    engine = Engine()
    async with served(engine, runtime) as gateway:
        for api in REQUESTS:
            (in_lines if runtime == "ollama" else in_events)(engine, "content", [b"Hi"])
            engine.body = b"\xef\xbb\xbf" + engine.body
            for place in (0, 1):
                engine.payloads[place] = b"\xef\xbb\xbf" + engine.payloads[place]
            assert (await same(gateway, api, api)).content == "Hi"


async def test_half_a_character_in_a_text_completion() -> None:
    engine = Engine()
    async with served(engine, "openai") as gateway:
        for name, (parts, text) in CHARACTERS.items():
            said = [{"id": "x", "choices": [{"index": 0, "text": SLOT, "finish_reason": None}]} for _ in parts]
            last = {"id": "x", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
            engine.payloads = [*map(filled, said, parts), filled(last, b"")]
            engine.body = filled({**last, "choices": [{"text": SLOT}]}, b"".join(parts))
            found = []
            for stream in (False, True):
                answer = await gateway.ask({"model": "m", "prompt": "Hi", "stream": stream}, "/v1/completions")
                assert answer.status == 200, answer.body
                bodies = [answer.body] if not stream else [e[6:] for e in answer.body.split(b"\n\n")[:-2]]
                for each in map(strict, bodies):
                    check(
                        "openai.types:Completion",
                        {**each, "choices": [{**each["choices"][0], "finish_reason": "stop"}]},
                    )
                found.append("".join(strict(each)["choices"][0]["text"] for each in bodies))
            assert found == [text, text], name


# Numbers

NUMBERS: dict[str, tuple[bytes, int]] = {
    "3": (b"3", 3),
    "too large for a double": (b"1e999", 0),
    "NaN": (b"NaN", 0),
    "Infinity": (b"Infinity", 0),
    "-Infinity": (b"-Infinity", 0),
    "negative": (b"-1", 0),
    "a fraction": (b"1.5", 1),
    "text": (b'"12"', 12),
    "no number": (b'"x"', 0),
    "null": (b"null", 0),
    "true": (b"true", 0),
    "a list": (b"[1]", 0),
    "an object": (b'{"a":1}', 0),
}
HUGE: dict[str, bytes] = {"10**400": b"1" + b"0" * 400, "10**5000": b"1" + b"0" * 5000, "1e300": b"1e300"}


def count_in(engine: Engine, runtime: str, count: bytes) -> None:
    """Puts the count in place of each count of an answer."""
    (in_lines if runtime == "ollama" else in_events)(engine, "content", [b"Hi"])
    counts = [b'"prompt_tokens": 3', b'"completion_tokens": 4', b'"total_tokens": 7']
    counts += [b'"prompt_eval_count": 3', b'"eval_count": 4']
    for each in counts:
        put = each.partition(b":")[0] + b": " + count
        engine.body = engine.body.replace(each, put)
        engine.payloads = [payload.replace(each, put) for payload in engine.payloads]


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_counts_of_tokens_are_whole_numbers(runtime: str) -> None:
    engine = Engine()
    async with served(engine, runtime) as gateway:
        for api in REQUESTS:
            for name, (count, expected) in NUMBERS.items():
                count_in(engine, runtime, count)
                said = await same(gateway, api, (api, name))
                assert (said.content, said.usage) == ("Hi", (expected, expected)), (api, name)
            for name, count in HUGE.items():
                count_in(engine, runtime, count)
                assert (await same(gateway, api, (api, name))).content == "Hi"


PLACES: dict[str, Json] = {
    "in a field that nobody reads": {"x": SLOT},
    "its time": {"created": SLOT},
    "timings": {"timings": {"prompt_ms": SLOT, "predicted_ms": SLOT, "prompt_n": SLOT}},
    "details": {"usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": SLOT}}},
    "no usage": {"usage": SLOT},
}


async def test_numbers_elsewhere() -> None:
    engine = Engine()
    async with served(engine, "openai") as gateway:
        for api in REQUESTS:
            for place, fields in PLACES.items():
                for name, number in [
                    *((name, number) for name, (number, _) in NUMBERS.items()),
                    ("huge", HUGE["1e300"]),
                ]:
                    put = f'"{SLOT}"'.encode()
                    chunks = [chunk("Hi", role="assistant"), chunk(reason="stop")]
                    engine.payloads = [json.dumps({**each, **fields}).encode().replace(put, number) for each in chunks]
                    engine.body = json.dumps({**completion("Hi"), **fields}).encode().replace(put, number)
                    said = await same(gateway, api, (api, place, name), usage=False)
                    assert said.content == "Hi", (api, place, name)


# Shapes

Change = Callable[[Json], None]
"""Changes a chunk or an answer in place."""


def _at(places: Callable[[Json], list[Json]], changed: Json) -> Change:
    """Sets fields at these places of each chunk or answer; `...` removes one."""

    def change(body: Json) -> None:
        for each in places(body):
            for name, value in changed.items():
                each.pop(name, None)
                if value is not ...:
                    each[name] = value

    return change


def fields(**changed: Any) -> Change:
    return _at(lambda body: [body], changed)


def choices(**changed: Any) -> Change:
    return _at(lambda body: body["choices"], changed)


def said(**changed: Any) -> Change:
    """The delta or message of each choice."""
    return _at(lambda body: [_said(each) for each in body["choices"]], changed)


def until_the_end(**changed: Any) -> Change:
    """The choices that don't end."""
    return _at(lambda body: [each for each in body["choices"] if not each["finish_reason"]], changed)


def at_the_end(**changed: Any) -> Change:
    return _at(lambda body: [each for each in body["choices"] if each["finish_reason"]], changed)


def call(**changed: Any) -> Change:
    """Each call, or fragment of one."""
    return _at(_all_calls, changed)


def later(**changed: Any) -> Change:
    """The functions of the fragments after a call's first."""
    return _at(lambda body: [each["function"] for each in _all_calls(body) if "id" not in each], changed)


def in_the_usage_chunk(**changed: Any) -> Change:
    return _at(lambda body: [] if body["choices"] else [body], changed)


def _said(choice: Json) -> Json:
    found: Json = choice["delta"] if "delta" in choice else choice["message"]
    return found


def _all_calls(body: Json) -> list[Json]:
    return [each for choice in body["choices"] for each in _calls(_said(choice))]


def in_parts(body: Json) -> None:
    for choice in body["choices"]:
        if text := _said(choice).get("content"):
            _said(choice)["content"] = [{"type": "text", "text": text[:1]}, {"type": "text", "text": text[1:]}]


def renamed(new: str) -> Change:
    """Another name for `delta`, or `message`."""

    def change(body: Json) -> None:
        for choice in body["choices"]:
            choice[new] = choice.pop("delta" if "delta" in choice else "message")

    return change


def as_text(body: Json) -> None:
    for choice in body["choices"]:
        choice["text"] = choice.pop("delta" if "delta" in choice else "message").get("content") or ""


def without_empty_deltas(body: Json) -> None:
    for choice in body["choices"]:
        if choice.get("delta") == {}:
            del choice["delta"]


def empty_deltas_null(body: Json) -> None:
    for choice in body["choices"]:
        if choice.get("delta") == {}:
            choice["delta"] = None


SHAPES: dict[str, Change] = {
    "as OpenAI has it": fields(),
    "no role": said(role=...),
    "an empty role in each": said(role=""),
    "null as the role in each": said(role=None),
    "the role in each": said(role="assistant"),
    "another role": said(role="model"),
    "no id": fields(id=...),
    "null as id": fields(id=None),
    "an empty id": fields(id=""),
    "a number as id": fields(id=7),
    "no object": fields(object=...),
    "another object": fields(object="chat.completion"),
    "a text completion": fields(object="text_completion"),
    "no created": fields(created=...),
    "null as created": fields(created=None),
    "created with a fraction": fields(created=7.5),
    "created as text": fields(created="2026-01-01T00:00:00Z"),
    "no model": fields(model=...),
    "null as the model": fields(model=None),
    "no index": choices(index=...),
    "null as the index": choices(index=None),
    "text as the index": choices(index="0"),
    "-1 as the index": choices(index=-1),
    "no finish_reason before the end": until_the_end(finish_reason=...),
    "an empty finish_reason before the end": until_the_end(finish_reason=""),
    "no finish_reason": choices(finish_reason=...),
    "an empty finish_reason": choices(finish_reason=""),
    "another finish_reason": at_the_end(finish_reason="eos_token"),
    "one in capitals": at_the_end(finish_reason="STOP"),
    "a number as finish_reason": at_the_end(finish_reason=2),
    "no delta at the end": without_empty_deltas,
    "null as the delta at the end": empty_deltas_null,
    "message in place of delta": renamed("message"),
    "delta in place of message": renamed("delta"),
    "text in place of delta": as_text,
    "content in parts": in_parts,
    "no choices in the usage chunk": in_the_usage_chunk(choices=...),
    "null as the choices of the usage chunk": in_the_usage_chunk(choices=None),
    "usage in each": fields(usage=USAGE),
    "a list as logprobs": choices(logprobs=[]),
    "a number as fingerprint": fields(system_fingerprint=7),
    "nothing around the choices": fields(id=..., object=..., created=..., model=...),
    "null as the calls": said(tool_calls=None),
    "no calls": said(tool_calls=[]),
    "null as the reasoning": said(reasoning=None, reasoning_content=None),
    "an object as the reasoning": said(reasoning={}),
}
CALLS: dict[str, Change] = {
    "as OpenAI has them": fields(),
    "no index": call(index=...),
    "null as the index": call(index=None),
    "text as the index": call(index="0"),
    "another first index": call(index=1),
    "no id": call(id=...),
    "an empty id in each": call(id=""),
    "null as the id in each": call(id=None),
    "a number as the id": call(id=7),
    "no type": call(type=...),
    "an empty type in each": call(type=""),
    "the type in each": call(type="function"),
    "null as the name later": later(name=None),
    "an empty name later": later(name=""),
    "the name in each": later(name="f"),
    "stop as finish_reason": at_the_end(finish_reason="stop"),
    "another finish_reason": at_the_end(finish_reason="tool_use"),
    "an empty finish_reason": choices(finish_reason=""),
    "null as the content": said(content=None),
    "an empty content": said(content=""),
    "no role": said(role=...),
    "message in place of delta": renamed("message"),
    "nothing around the choices": fields(id=..., object=..., created=..., model=...),
}


def shaped(engine: Engine, change: Change, chunks: list[Json], body: Json) -> None:
    copies: list[Json] = json.loads(json.dumps([*chunks, {**chunk(), "choices": [], "usage": USAGE}, body]))
    for each in copies:
        change(each)
    *payloads, whole = [json.dumps(each).encode() for each in copies]
    engine.payloads, engine.body = payloads, whole


REASONS = {"chat": "stop", "responses": "stop", "messages": "end_turn", "Ollama": "stop"}
CALL_REASONS = {"chat": "tool_calls", "responses": "stop", "messages": "tool_use", "Ollama": "stop"}


@pytest.mark.parametrize("runtime", ["openai", "llama.cpp", "mlx"])
async def test_texts_of_odd_servers(runtime: str) -> None:
    engine = Engine()
    chunks = [chunk("", role="assistant"), chunk("Hel"), chunk("lo"), chunk(reason="stop")]
    async with served(engine, runtime) as gateway:
        for api in REQUESTS:
            for name, change in SHAPES.items():
                shaped(engine, change, chunks, {**completion("Hello"), "usage": USAGE})
                found = await same(gateway, api, (api, name))
                assert found == Said("Hello", "", [], REASONS[api], (3, 4)), (api, name)


@pytest.mark.parametrize("runtime", ["openai", "llama.cpp", "mlx"])
async def test_calls_of_odd_servers(runtime: str) -> None:
    engine = Engine()
    # fmt: off
    chunks = [
        chunk("", role="assistant"), chunk(tool_calls=native("")), chunk(tool_calls=native('{"city":', first=False)),
        chunk(tool_calls=native('"Rome"}', first=False)), chunk(reason="tool_calls"),
    ]
    # fmt: on
    body = {**completion(None, tool_calls=native('{"city":"Rome"}'), reason="tool_calls"), "usage": USAGE}
    async with served(engine, runtime) as gateway:
        for api in REQUESTS:
            for name, change in CALLS.items():
                shaped(engine, change, chunks, body)
                found = await same(gateway, api, (api, name))
                assert found == Said("", "", [("f", {"city": "Rome"})], CALL_REASONS[api], (3, 4)), (api, name)


LINE: Json = {"model": "m", "created_at": "x", "message": {"role": "assistant", "content": "Hi"}, "done": False}
END: Json = {
    **LINE,
    "message": {"content": ""},
    "done": True,
    "done_reason": "stop",
    "prompt_eval_count": 3,
    "eval_count": 4,
}
LINES: dict[str, tuple[Json, Json]] = {
    "as Ollama has it": (LINE, END),
    "no role": ({**LINE, "message": {"content": "Hi"}}, END),
    "null as the content at the end": (LINE, {**END, "message": {"role": "", "content": None}}),
    "no message at the end": (LINE, {name: value for name, value in END.items() if name != "message"}),
    "null as the message at the end": (LINE, {**END, "message": None}),
    "no done_reason": (LINE, {**END, "done_reason": ""}),
    "null as the done_reason": (LINE, {**END, "done_reason": None}),
    "another done_reason": (LINE, {**END, "done_reason": "end_turn"}),
    "null as the calls": ({**LINE, "message": {"content": "Hi", "tool_calls": None}}, END),
    "null as the thinking": ({**LINE, "message": {"content": "Hi", "thinking": None}}, END),
    "content in parts": ({**LINE, "message": {"content": [{"type": "text", "text": "Hi"}]}}, END),
    "no model": ({"message": LINE["message"], "done": False}, END),
    "counts as text": (LINE, {**END, "prompt_eval_count": "3", "eval_count": "4"}),
}


async def test_lines_of_odd_servers() -> None:
    engine = Engine(kind="lines")
    async with served(engine, "ollama") as gateway:
        for api in REQUESTS:
            for name, (line, end) in LINES.items():
                engine.payloads = [json.dumps(each).encode() for each in (line, end)]
                engine.body = json.dumps({**end, "message": line["message"]}).encode()
                found = await same(gateway, api, (api, name))
                assert found == Said("Hi", "", [], REASONS[api], (3, 4)), (api, name)

"""Ollama's requests as chat requests."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.features.ollama.wire.request import Chat, Generate, plain_name

Json = dict[str, Any]

HI: Json = {"role": "user", "content": "Hi"}
ALWAYS: Json = {"stream": True, "stream_options": {"include_usage": True}}


def chat(*messages: Json, **fields: Any) -> Json:
    return Chat.parse(json.dumps({"messages": messages, **fields}).encode()).chat_fields()


def called(*functions: Json, **more: Any) -> Json:
    return {"role": "assistant", "content": "", "tool_calls": [{"function": one} for one in functions], **more}


def call(id: str, name: str, arguments: str = "{}") -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(name: str | None = None, **more: Any) -> Json:
    return {"role": "tool", "content": "1", **({"tool_name": name} if name else {}), **more}


def ids(found: Json) -> list[str | None]:
    return [message.get("tool_call_id") for message in found["messages"] if message["role"] == "tool"]


def test_messages() -> None:
    found = chat(
        {"role": "system", "content": "Be brief."},
        HI,
        called({"name": "f", "arguments": {"a": "é"}}, {"name": "g"}, thinking="Hm."),
        result("g"),
        result("f"),
    )
    assert found["messages"] == [
        {"role": "system", "content": "Be brief."},
        HI,
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Hm.",
            "tool_calls": [call("call_2_0", "f", '{"a":"é"}'), call("call_2_1", "g")],
        },
        {"role": "tool", "content": "1", "tool_call_id": "call_2_1", "name": "g"},
        {"role": "tool", "content": "1", "tool_call_id": "call_2_0", "name": "f"},
    ]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        pytest.param([result(), result()], ["call_0_0", "call_0_1"], id="in order"),
        pytest.param([result("f"), result("f")], ["call_0_0", "call_0_1"], id="two of one name"),
        pytest.param([result(name="f")], [None, ], id="a name that none has"),
        pytest.param([result(tool_call_id="x")], ["x"], id="its own id"),
        pytest.param([result(), result(), result()], ["call_0_0", "call_0_1", None], id="one too many"),
    ],
)  # fmt: skip
def test_results_find_their_calls(results: list[Json], expected: list[str | None]) -> None:
    name = "f" if len(results) > 1 and results[0].get("tool_name") else "h"
    assert ids(chat(called({"name": name}, {"name": name}), *results)) == expected


def test_a_call_keeps_its_id_and_its_arguments_in_text() -> None:
    given = {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": '{"a": 1}'}}]}
    found = chat(given, result(tool_call_id="x"))
    assert found["messages"][0]["tool_calls"] == [call("x", "f", '{"a": 1}')]


@pytest.mark.parametrize(
    ("head", "kind"),
    [(b"\x89PNG", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF89a", "gif"), (b"RIFF", "webp"), (b"?", "png")],
)
def test_pictures(head: bytes, kind: str) -> None:
    data = base64.b64encode(head + bytes(100)).decode()
    (message,) = chat({**HI, "images": [data]})["messages"]
    assert message["content"] == [
        {"type": "text", "text": "Hi"},
        {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}},
    ]


SCHEMA = {"type": "object"}
FIELDS: dict[str, tuple[Json, Json]] = {
    "nothing": ({}, ALWAYS),
    "no stream": ({"stream": False}, {"stream": False}),
    "a model's tag": ({"model": "m:latest"}, {**ALWAYS, "model": "m"}),
    "options": (
        {"options": {"num_predict": 5, "temperature": 0, "stop": ["x"], "num_ctx": 4096, "seed": None}},
        {**ALWAYS, "max_tokens": 5, "temperature": 0, "stop": ["x"]},
    ),
    "no limit": ({"options": {"num_predict": -1}}, ALWAYS),
    "no limit, as Ollama's runner reads it": ({"options": {"num_predict": 0}}, ALWAYS),
    "the least limit": ({"options": {"num_predict": 1}}, {**ALWAYS, "max_tokens": 1}),
    "other options that are 0": ({"options": {"top_p": 0, "seed": 0}}, {**ALWAYS, "top_p": 0, "seed": 0}),
    "a negative seed": ({"options": {"seed": -1}}, {**ALWAYS, "seed": -1}),
    "json": ({"format": "json"}, {**ALWAYS, "response_format": {"type": "json_object"}}),
    "a schema": (
        {"format": SCHEMA},
        {**ALWAYS, "response_format": {"type": "json_schema", "json_schema": {"name": "o", "schema": SCHEMA}}},
    ),
    "an empty format": ({"format": ""}, ALWAYS),
    "thinking": ({"think": True}, {**ALWAYS, "chat_template_kwargs": {"enable_thinking": True}}),
    "no thinking": ({"think": False}, {**ALWAYS, "chat_template_kwargs": {"enable_thinking": False}}),
    "much thinking": ({"think": "high"}, {**ALWAYS, "reasoning_effort": "high"}),
    "tools": ({"tools": [{"type": "function"}]}, {**ALWAYS, "tools": [{"type": "function"}]}),
    "no tools": ({"tools": []}, ALWAYS),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name: str) -> None:
    fields, expected = FIELDS[name]
    assert chat(HI, **fields) == {"messages": [HI], **expected}


def generate(**fields: Any) -> Generate:
    return Generate.parse(json.dumps({"prompt": "Hi", **fields}).encode())


def test_generate_is_a_chat_unless_it_goes_without_a_template() -> None:
    asked = generate(system="Be brief.")
    assert not asked.plain
    assert asked.chat_fields()["messages"] == [{"role": "system", "content": "Be brief."}, HI]
    assert generate().chat_fields()["messages"] == [HI]
    assert generate(raw=True).plain
    assert generate(raw=True).completion_fields() == {**ALWAYS, "prompt": "Hi"}
    assert generate(suffix="!").plain
    assert generate(suffix="!").completion_fields() == {**ALWAYS, "prompt": "Hi", "suffix": "!"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"template": "{{ x }}"}, "template"), ({"context": [1]}, "context"), ({"format": "xml"}, "format")],
)
def test_generate_refuses_what_it_can_t_do(fields: Json, param: str) -> None:
    with pytest.raises(ProviderInvalidRequest) as caught:
        generate(**fields).chat_fields()
    assert caught.value.param == param


def test_a_picture_that_is_none_is_refused() -> None:
    with pytest.raises(ProviderInvalidRequest) as caught:
        chat({**HI, "images": ["no base64!"]})
    assert caught.value.param == "messages[0].images[0]"


def test_other_tags_stay() -> None:
    assert [plain_name(name) for name in ("m", "m:latest", "m:7b")] == ["m", "m", "m:7b"]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (None, None),
        (0, 0),
        ("0", 0),
        (300, 300),
        (1.5, 1.5),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("500ms", 0.5),
        ("24h", 86400),
        ("60", 60),
        ("2s", 2),
        ("+.5m", 30),
        ("3us", 3e-6),
        ("3\u00b5s", 3e-6),
        ("3\u03bcs", 3e-6),
        ("7ns", 7e-9),
        (-1, math.inf),
        ("-1", math.inf),
        ("-1m", math.inf),
    ],
)
def test_durations(written: object, seconds: float | None) -> None:
    assert Chat(model="m", keep_alive=written).kept_seconds == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("written", ["", "soon", "5 minutes", "m5", True, [], {}, "5m!", "--1"])
def test_no_durations(written: object) -> None:
    with pytest.raises(ProviderInvalidRequest, match="keep_alive"):
        _ = Chat(model="m", keep_alive=written).kept_seconds

"""An example of each body that an endpoint takes, for `tests.hostile.test_endpoints`, which grows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.features.models.manage import MAX_BYTES as MANAGED_BYTES
from gateway.features.rooms.records import MAX_BYTES
from tests.hostile import grown
from tests.hostile.grown import Grown

Json = dict[str, Any]

MULTIPART = "multipart/form-data; boundary=x"
URLENCODED = "application/x-www-form-urlencoded"
FORM = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'


@dataclass(frozen=True)
class Row:
    """What one method of a path takes.

    examples: JSON bodies that it accepts with one of `statuses`. others: bodies of other kinds, as name → Content-Type
    and a function of the size. longest: bytes above which it refuses a body before it reads it.
    """

    examples: tuple[Json, ...] = ()
    others: Mapping[str, tuple[str, Callable[[int], bytes]]] = field(default_factory=dict)
    statuses: tuple[int, ...] = (200, 201)
    longest: int = 2**30

    def grown(self, size: int) -> list[Grown]:
        size = min(size, self.longest - 10_000)
        return [each for example in self.examples for each in grown.grown(example, size)]


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
FUNCTION = {"name": "f", "description": "Looks.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Rome"}'}}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "seed": 1}
CHAT: Json = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "Sun"},
        {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "Hi"}]},
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
    "stop": ["END"],
    "logit_bias": {"1": 1},
    "metadata": {"a": "b"},
    "user": "ann",
    "max_tokens": 9,
    "stream_options": {"include_usage": True},
    "stream": True,
    **SAMPLING,
}
CHECKED: Json = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hi"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
}
SEEN: Json = {
    "model": "m",
    "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}],
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
}
OLD: Json = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "functions": [FUNCTION], "stream": False}
ITEMS: list[Json] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"city": "Rome"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "Sun"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "Yes", "annotations": []}]},
    {"role": "user", "content": "Hi"},
]
RESPONSE: Json = {
    "model": "m",
    "input": ITEMS,
    "instructions": "Be brief.",
    "tools": [{"type": "function", "name": "f", "description": "Looks.", "parameters": SCHEMA, "strict": False}],
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "reasoning": {"effort": "low"},
    "user": "ann",
    "max_output_tokens": 9,
    "store": False,
    "temperature": 0.5,
    "top_p": 0.9,
}
BLOCKS: list[Json] = [
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm", "signature": "s"},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"city": "Rome"}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "Sun"}]}],
    },
]
MESSAGES: Json = {
    "model": "m",
    "messages": BLOCKS,
    "system": [{"type": "text", "text": "Be brief."}],
    "tools": [{"name": "f", "description": "Looks.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto"},
}
OLLAMA: Json = {"model": "m", "options": {"num_predict": 9, "stop": ["END"]}, "keep_alive": "5m", "stream": True}
SPOKEN: list[Json] = [
    {"role": "user", "content": "Hi", "images": ["iVBORw0KGgo="]},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"city": "Rome"}}}]},
    {"role": "tool", "tool_name": "f", "content": "Sun"},
]
ROOM: Json = {
    "purpose": "answer",
    "metadata": {"name": "mine"},
    "agents": [{"agent_id": "a", "instructions": "Be brief.", "skills": ["reading"]}],
    "tool_policy": {"access": "read", "allow": ["*"], "deny": ["curl.*"]},
    "bounds": {"model_calls": 3},
}
QUERY: Json = {"where": {"$and": [{"city": {"$eq": "Rome"}}, {"city": {"$in": ["Rome"]}}]}, "order": ["city"]}


def many_tools(size: int) -> bytes:
    tools = [{"type": "function", "function": {"name": f"f{at}", "parameters": SCHEMA}} for at in range(size // 150)]
    return json.dumps({"model": "m", "messages": CHAT["messages"][:1], "tools": tools}).encode()


def many_turns(size: int) -> bytes:
    """Each call has an id of its own, and its answer."""
    turns: list[Json] = []
    for at in range(size // 230):
        turns.append({"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": f"c{at}"}]})
        turns.append({"role": "tool", "tool_call_id": f"c{at}", "content": "Sun"})
    return json.dumps({**CHAT, "messages": [CHAT["messages"][0], *turns]}).encode()


def many_items(size: int) -> bytes:
    items: list[Json] = []
    for at in range(size // 180):
        items.append({**ITEMS[1], "call_id": f"c{at}"})
        items.append({**ITEMS[2], "call_id": f"c{at}"})
    return json.dumps({"model": "m", "input": items, "store": False}).encode()


def many_blocks(size: int) -> bytes:
    turns: list[Json] = []
    for at in range(size // 220):
        turns.append({"role": "assistant", "content": [{**BLOCKS[1]["content"][1], "id": f"c{at}"}]})
        turns.append({"role": "user", "content": [{**BLOCKS[2]["content"][0], "tool_use_id": f"c{at}"}]})
    return json.dumps({"model": "m", "max_tokens": 9, "messages": [BLOCKS[0], *turns]}).encode()


def many_models(size: int) -> bytes:
    return b"models:\n" + b"".join(b"  m%d: {runtime: echo}\n" % at for at in range(min(size, 500_000) // 24))


def anchors(size: int) -> bytes:
    """Ten levels of aliases, each ten times the one before."""
    levels = [b"a0: &a0 [x]\n"]
    levels += [b"a%d: &a%d [%b]\n" % (at, at, b", ".join([b"*a%d" % (at - 1)] * 10)) for at in range(1, 10)]
    return b"".join(levels)


def uploaded(size: int) -> bytes:
    return FORM + FILE + b"x" * size + b"\r\n--x--\r\n"


def lines(size: int) -> bytes:
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHECKED}).encode()
    return FORM + FILE + (line + b"\n") * (size // len(line)) + b"\r\n--x--\r\n"


def _json(**bodies: Callable[[int], bytes]) -> dict[str, tuple[str, Callable[[int], bytes]]]:
    return {name: ("application/json", body) for name, body in bodies.items()}


def _forms(name: str) -> dict[str, tuple[str, Callable[[int], bytes]]]:
    """A form with one large file, and others that only look like one."""
    head = f'Content-Disposition: form-data; name="{name}"; filename="f"\r\n\r\n'.encode()
    model = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nmedia\r\n'
    return {
        "a file": (MULTIPART, lambda size: model + b"--x\r\n" + head + bytes(size) + b"\r\n--x--\r\n"),
        "a file like a boundary": (MULTIPART, lambda size: b"--x\r\n" + head + b"\r\n--" * (size // 4)),
        "many files": (MULTIPART, lambda size: (b"--x\r\n" + head) * (size // 100)),
    }


TOOLS_OF_OLLAMA: Json = {**OLLAMA, "messages": SPOKEN, "tools": [TOOL]}
YAML = "application/yaml"

ROWS: dict[str, Row] = {
    "POST [/v1]/chat/completions": Row((CHAT, CHECKED, SEEN, OLD), _json(many_tools=many_tools, many_turns=many_turns)),
    "POST /-/chat/completions": Row((CHECKED,), _json(many_tools=many_tools, many_turns=many_turns)),
    "POST [/v1]/messages": Row(
        ({**MESSAGES, "max_tokens": 9, "stop_sequences": ["END"], "metadata": {"user_id": "a"}, "stream": True},),
        _json(many_blocks=many_blocks),
    ),
    "POST [/v1]/messages/count_tokens": Row((MESSAGES,), _json(many_blocks=many_blocks)),
    "POST [/v1]/responses[/]": Row(
        ({**RESPONSE, "stream": True}, {**RESPONSE, "store": True, "stream": False}, {"model": "m", "input": "Hi"}),
        _json(many_items=many_items),
    ),
    "POST [/v1]/responses/compact": Row(({"model": "m", "input": ITEMS},), _json(many_items=many_items)),
    "POST [/v1]/responses/input_tokens": Row(
        ({**RESPONSE, "truncation": "auto"},),
        _json(many_items=many_items),
    ),
    "POST [/v1]/responses/{id}/cancel": Row(statuses=(400,)),
    "POST [/v1]/conversations[/]": Row(({"items": ITEMS[:2], "metadata": {"a": "b"}},)),
    "POST [/v1]/conversations/{id}": Row(({"metadata": {"a": "b"}},)),
    "POST [/v1]/conversations/{id}/items": Row(({"items": ITEMS[:2]},)),
    "POST [/v1]/completions": Row(
        ({"model": "m", "prompt": ["Hi"], "stop": ["END"], "logit_bias": {"1": 1}, "max_tokens": 9, **SAMPLING},),
    ),
    "POST [/v1]/embeddings": Row(
        ({"model": "vectors", "input": ["Hi"], "user": "ann"}, {"model": "vectors", "input": [[1, 2]]}),
    ),
    "POST [/v1]/rerank": Row(({"model": "ranks", "query": "Hi", "documents": ["Hi", {"text": "Ho"}], "top_n": 1},)),
    "POST /api/chat": Row((TOOLS_OF_OLLAMA, {**OLLAMA, "messages": SPOKEN[:1], "format": SCHEMA})),
    "POST /api/generate": Row(({**OLLAMA, "prompt": "Hi", "system": "Be brief.", "format": SCHEMA},)),
    "POST /api/embed": Row(({"model": "vectors", "input": ["Hi"], "options": {"a": 1}},)),
    "POST /api/embeddings": Row(({"model": "vectors", "prompt": "Hi"},)),
    "POST /api/show": Row(({"model": "m", "options": {"a": 1}},)),
    "POST /api/pull": Row(({"model": "nothing", "stream": False},), statuses=(503,)),
    "DELETE /api/delete": Row(({"model": "nothing"},), statuses=(404,)),
    "POST /-/jobs": Row(
        ({"kind": "evaluate", "model": "nothing", "suite": "smoke"},), statuses=(404,), longest=MANAGED_BYTES
    ),
    "DELETE /-/jobs/{id}": Row(statuses=(404,)),
    "POST /-/default": Row(({"model": "nothing"},), statuses=(404,), longest=MANAGED_BYTES),
    "POST /-/models/{name:path}/format": Row(
        ({"tool_call_format": "nothing"},), statuses=(400,), longest=MANAGED_BYTES
    ),
    "POST [/v1]/models/{name}/load": Row(statuses=(200, 400)),
    "POST [/v1]/models/{name}/unload": Row(statuses=(200, 400)),
    "DELETE [/v1]/responses/{id}": Row(statuses=(200, 404)),
    "DELETE [/v1]/conversations/{id}": Row(),
    "DELETE [/v1]/conversations/{id}/items/{item}": Row(),
    "POST /-/plan": Row(others={"models": (YAML, many_models), "aliases": (YAML, anchors)}, statuses=(200, 422)),
    "POST /-/reload": Row(),
    "POST /llm/room[/]": Row((ROOM,)),
    "PATCH /llm/room/{id}[/]": Row(({**ROOM, "summary_text": "Before."},)),
    "POST /llm/room/{id}/messages[/]": Row(
        ({"content": "Hi", "metadata": {"a": "b"}}, {"content": [{"type": "text", "text": "Hi"}]}), statuses=(202,)
    ),
    "POST /llm/room/{id}/wake[/]": Row(({"retry": True},), statuses=(200, 201, 409)),
    "POST /llm/room/{id}/interrupt[/]": Row(({"reason": "x"},), statuses=(200, 409)),
    "POST /llm/room/{id}/release[/]": Row(({"mode": "graceful", "reason": "x"},)),
    "PUT /llm/room/{id}/files/{path:path}": Row(
        others={
            "text": ("text/plain", lambda size: b"a\n" * (size // 2)),
            "a zip": ("application/zip", lambda size: b"PK\x03\x04" + bytes(size)),
        }
    ),
    "DELETE /llm/room/{id}/files/{path:path}": Row(statuses=(404,)),
    "POST /llm/factory/runs[/]": Row(statuses=(404,)),
    "POST /llm/factory/{name}[/]": Row(({"metadata": {"name": "mine"}},)),
    "PUT /llm/describe/{model}[/]": Row(({"schema": SCHEMA, "description": "Places."},), longest=MAX_BYTES),
    "POST /llm/data/{model}[/]": Row(({"city": "Rome"},), longest=MAX_BYTES),
    "PATCH /llm/data/{model}/{id}[/]": Row(({"city": "Rome"},), statuses=(200, 404), longest=MAX_BYTES),
    "DELETE /llm/data/{model}/{id}[/]": Row(),
    "POST /llm/find/{model}[/]": Row((QUERY,), longest=MAX_BYTES),
    "POST /llm/aggregate/{model}[/]": Row(
        ({"aggregate": {"n": {"$sum": "city"}}, "where": QUERY["where"]},), longest=MAX_BYTES
    ),
    "POST /api/user/secrets[/]": Row(({"name": "key", "value": "sk-1", "metadata": {"provider": "p"}},)),
    "DELETE /api/user/secrets/{id}[/]": Row(statuses=(404,)),
    "POST [/v1]/files[/]": Row(
        others={
            "a file": (MULTIPART, uploaded),
            "a batch": (MULTIPART, lines),
            "fields": (MULTIPART, lambda size: FORM * (size // len(FORM))),
        },
        statuses=(400,),
    ),
    "DELETE [/v1]/files/{id}": Row(statuses=(404,)),
    "POST [/v1]/batches[/]": Row(
        (
            {
                **{"input_file_id": "file-x", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
                "metadata": {"a": "b"},
            },
        ),
        statuses=(400,),
    ),
    "POST [/v1]/batches/{id}/cancel": Row(statuses=(404,)),
    "POST [/v1]/audio/transcriptions": Row(others=_forms("file"), statuses=(400,)),
    "POST [/v1]/audio/translations": Row(others=_forms("file"), statuses=(400,)),
    "POST [/v1]/images/edits": Row(others=_forms("image"), statuses=(400,)),
    "POST [/v1]/images/variations": Row(others=_forms("image"), statuses=(400,)),
    "POST [/v1]/audio/speech": Row(
        ({"model": "media", "input": "Hi", "voice": "alba", "speed": 1.5, "service_tier": "default"},)
    ),
    "POST [/v1]/images/generations": Row(({"model": "media", "prompt": "A cat", "n": 1, "size": "64x64"},)),
    "POST [/v1]/infill": Row(
        (
            {
                **{"model": "media", "input_prefix": "a", "input_suffix": "b", "stop": ["END"], "stream": True},
                "input_extra": [{"filename": "f", "text": "x"}],
            },
        )
    ),
    "POST [/v1]/tokenize": Row(({"model": "m", "content": "Hi", "add_special": True},)),
    "POST [/v1]/detokenize": Row(({"model": "m", "tokens": [1, 2]},)),
    "POST [/v1]/apply-template": Row(({"model": "m", "messages": CHAT["messages"], "tools": [TOOL]},)),
    "POST /upstream/{name}/{path:path}": Row(({"a": ["b"]},)),
    **dict.fromkeys((f"{method} /upstream/{{name}}/{{path:path}}" for method in ("PUT", "PATCH", "DELETE")), Row()),
}
PARAMETERS = {"name": "m", "key": "1", "file": "index.html", "path": "a/b", "model": "place"}
"""Those that are the same for each run; ids come from `test_endpoints`."""
ENDLESS = ("/-/events", "/llm/room/{id}/events[/]")
"""Streams that end with the client alone."""
MESSAGES_BY_WEBSOCKET: dict[str, Json] = {"[/v1]/responses[/]": {"type": "response.create", **RESPONSE}}

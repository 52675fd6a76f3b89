"""Every answer and event of OpenAI's and Anthropic's APIs, from a real engine, by the types of their own packages.

The packages are generated from the published specifications; their clients read any JSON, so a client that works shows
little. What an answer may hold besides is in `test_open_responses`, `test_responses_events` and `test_messages_events`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from gateway.api import routes
from tests.api.asking import WEATHER
from tests.api.published import check
from tests.patience import PATIENCE

SAY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": WEATHER}}
CALL = {"type": "function", "function": {"name": "get_weather"}}
LINES = "\n".join(
    json.dumps({"custom_id": f"{number}", "method": "POST", "url": "/v1/chat/completions", "body": SAY})
    for number in range(500)
)
"""Of a batch that hasn't ended by the time that it is cancelled."""

OWN = (
    "/audio/",  # tests/media asks these through the client, on models that hear and speak
    "/images/",
    "/infill",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/upstream/",
    "/ready",
    "/load",
    "/unload",
    "/rerank",
    "/metrics",
    "/-/",
    "/openapi.json",
    "/llms.txt",
    "/ui/",
    "/llm/",
    "/api/",
)
"""Parts of paths that neither company has."""


class Walk:
    """Asks, checks what comes, and notes which routes it has seen."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.seen: set[tuple[str, str]] = set()
        self._http = http

    async def ask(
        self, kind: str | None, method: str, route: str, body: Mapping[str, Any] | None = None, **asked: Any
    ) -> Any:
        """kind: the published type; None for what isn't JSON. Names in `asked` that the route has go into its path, the
        rest to httpx."""
        names = {name: asked.pop(name) for name in [*asked] if f"{{{name}}}" in route}
        answer = await self._http.request(method, route.format(**names), json=body, **asked)
        assert answer.status_code == 200, (route, answer.text)
        self.seen.add((method, route))
        if kind is None:
            return answer.content
        found = answer.json()
        check(kind, found)
        return found

    async def listed(self, kind: str, route: str, **asked: Any) -> None:
        """A list of which each member has the type."""
        found = await self.ask("builtins:dict", "GET", route, **asked)
        assert found["object"] == "list"
        assert found["data"], route
        for each in found["data"]:
            check(kind, each)

    async def stream(self, kind: str, route: str, body: Mapping[str, Any]) -> list[Any]:
        answer = await self._http.post(route, json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
        for event in map(json.loads, events):
            if kind == "openai.types:Completion":
                # The type is that of whole answers, and has no null; what OpenAI sends has one until the end.
                event["choices"] = [{**choice, "finish_reason": "stop"} for choice in event["choices"]]
            if event != {"type": "ping"}:  # documented, and no member of Anthropic's union
                check(kind, event)
        assert len(events) > 2, answer.text
        return events


@pytest.mark.parametrize("more", [{}, {"service_tier": "flex"}], ids=["plain", "flex"])
async def test_each_route(real: str, more: Mapping[str, Any]) -> None:
    async with httpx.AsyncClient(base_url=real, timeout=PATIENCE) as http:
        walk = Walk(http)
        await walk_models_and_texts(walk, more)
        await walk_responses(walk, more)
        await walk_batches(walk)
        await walk_messages(walk)
    assert walk.seen == {*vendor_routes()}, "each route of the two companies needs a step above"


def vendor_routes() -> Iterator[tuple[str, str]]:
    tables = [routes.DIRECT, *(known.paths for known in routes.routes())]
    for path, methods in ((path, methods) for table in tables for path, methods in table.items()):
        if "health" not in path and path != "[/v1]/" and not any(part in path for part in OWN):
            plain = path.replace("[/v1]", "/v1").replace("[/]", "").replace(":path", "")
            yield from ((method, plain) for method in methods)


async def walk_models_and_texts(walk: Walk, more: Mapping[str, Any]) -> None:
    await walk.listed("openai.types:Model", "/v1/models")
    await walk.ask("openai.types:Model", "GET", "/v1/models/{name}", name="tiny")
    route, chunk = "/v1/chat/completions", "openai.types.chat:ChatCompletionChunk"
    called = {**SAY, **more, "tools": [TOOL], "tool_choice": CALL}
    for body in ({**SAY, **more}, called, {**SAY, **more, "logprobs": True}):
        answer = await walk.ask("openai.types.chat:ChatCompletion", "POST", route, body)
        assert answer.get("service_tier") == more.get("service_tier")
        await walk.stream(chunk, route, body)
        await walk.stream(chunk, route, {**body, "stream_options": {"include_usage": True}})
    text = {"model": "tiny", "prompt": "Hello", "max_tokens": 4, **more}
    await walk.ask("openai.types:Completion", "POST", "/v1/completions", text)
    await walk.stream("openai.types:Completion", "/v1/completions", text)
    vectors = {"model": "vectors", "input": ["Hello", "you"], **more}
    await walk.ask("openai.types:CreateEmbeddingResponse", "POST", "/v1/embeddings", vectors)


async def walk_responses(walk: Walk, more: Mapping[str, Any]) -> None:
    kind, item = "openai.types.responses:Response", "openai.types.conversations:ConversationItem"
    asked = {"model": "tiny", "input": "Hello!", **more}
    tool = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": None}
    for body in (asked, {**asked, "tools": [tool], "tool_choice": {"type": "function", "name": "get_weather"}}):
        made = await walk.ask(kind, "POST", "/v1/responses", body)
        await walk.stream("openai.types.responses:ResponseStreamEvent", "/v1/responses", body)
    compacted = await walk.ask("openresponses_types.types:CompactResource", "POST", "/v1/responses/compact", asked)
    # OpenAI documents user messages in it, for which the type of its package has no place.
    summary = [item for item in compacted["output"] if item["type"] == "compaction"]
    check("openai.types.responses:CompactedResponse", {**compacted, "output": summary})
    counted = "openai.types.responses:InputTokenCountResponse"
    await walk.ask(counted, "POST", "/v1/responses/input_tokens", asked)
    await walk.ask(kind, "GET", "/v1/responses/{id}", id=made["id"])
    items = "openai.types.responses:ResponseItemList"
    await walk.ask(items, "GET", "/v1/responses/{id}/input_items", id=made["id"])
    later = await walk.ask(kind, "POST", "/v1/responses", {**asked, "background": True})
    await walk.ask(kind, "POST", "/v1/responses/{id}/cancel", id=later["id"])
    await walk.ask("builtins:dict", "DELETE", "/v1/responses/{id}", id=made["id"])

    conversation = "openai.types.conversations:Conversation"
    hello = {"items": [{"type": "message", "role": "user", "content": "Hi"}]}
    id = (await walk.ask(conversation, "POST", "/v1/conversations", hello))["id"]
    await walk.ask(kind, "POST", "/v1/responses", {**asked, "conversation": id})
    await walk.ask(conversation, "GET", "/v1/conversations/{id}", id=id)
    await walk.ask(conversation, "POST", "/v1/conversations/{id}", {"metadata": {"a": "b"}}, id=id)
    listed = "openai.types.conversations:ConversationItemList"
    await walk.ask(listed, "POST", "/v1/conversations/{id}/items", hello, id=id)
    found = await walk.ask(listed, "GET", "/v1/conversations/{id}/items", id=id)
    one = {"id": id, "item": found["data"][0]["id"]}
    await walk.ask(item, "GET", "/v1/conversations/{id}/items/{item}", **one)
    await walk.ask(conversation, "DELETE", "/v1/conversations/{id}/items/{item}", **one)
    gone = "openai.types.conversations:ConversationDeletedResource"
    await walk.ask(gone, "DELETE", "/v1/conversations/{id}", id=id)


async def walk_batches(walk: Walk) -> None:
    kind, form = "openai.types:FileObject", {"purpose": (None, "batch"), "file": ("in.jsonl", LINES)}
    file = await walk.ask(kind, "POST", "/v1/files", files=form)
    await walk.listed(kind, "/v1/files")
    await walk.ask(kind, "GET", "/v1/files/{id}", id=file["id"])
    assert await walk.ask(None, "GET", "/v1/files/{id}/content", id=file["id"]) == LINES.encode()
    batch = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = await walk.ask("openai.types:Batch", "POST", "/v1/batches", batch)
    await walk.listed("openai.types:Batch", "/v1/batches")
    await walk.ask("openai.types:Batch", "GET", "/v1/batches/{id}", id=made["id"])
    await walk.ask("openai.types:Batch", "POST", "/v1/batches/{id}/cancel", id=made["id"])
    spare = await walk.ask(kind, "POST", "/v1/files", files=form)
    await walk.ask("openai.types:FileDeleted", "DELETE", "/v1/files/{id}", id=spare["id"])


async def walk_messages(walk: Walk) -> None:
    asked = {**SAY, "max_tokens": 64}
    tools = [{"name": "get_weather", "description": "Weather.", "input_schema": WEATHER}]
    for body in (asked, {**asked, "tools": tools, "tool_choice": {"type": "tool", "name": "get_weather"}}):
        await walk.ask("anthropic.types:Message", "POST", "/v1/messages", body)
        await walk.stream("anthropic.types:RawMessageStreamEvent", "/v1/messages", body)
    await walk.ask("anthropic.types:MessageTokensCount", "POST", "/v1/messages/count_tokens", SAY)


@pytest.mark.parametrize(
    ("route", "body", "kind"),
    [
        ("/v1/chat/completions", {}, "openai.types:ErrorObject"),
        ("/v1/chat/completions", {**SAY, "model": "nobody"}, "openai.types:ErrorObject"),
        ("/v1/responses", {"model": "tiny"}, "openai.types:ErrorObject"),
        ("/v1/batches", {}, "openai.types:ErrorObject"),
        ("/v1/messages", {}, "anthropic.types:ErrorResponse"),
        ("/v1/messages", {**SAY, "max_tokens": 9, "model": "nobody"}, "anthropic.types:ErrorResponse"),
    ],
)
async def test_errors(real: str, route: str, body: Mapping[str, Any], kind: str) -> None:
    async with httpx.AsyncClient(base_url=real, timeout=PATIENCE) as http:
        answer = await http.post(route, json=body)
    assert answer.status_code in (400, 404)
    check(kind, answer.json()["error"] if kind.startswith("openai") else answer.json())

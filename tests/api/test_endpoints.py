"""/v1/completions, /v1/embeddings, /v1/rerank and the counting of tokens, with the real engine."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.patience import PATIENCE

TEXTS = ["What is the weather in Paris in celsius?", "What is the weather in Rome in celsius?", "Send an email."]


@pytest.fixture
def client(real: str) -> Any:
    with OpenAI(base_url=f"{real}/v1", api_key="unused", max_retries=0, timeout=PATIENCE) as client:
        yield client


def post(url: str, body: Any) -> httpx.Response:
    return httpx.post(url, json=body, timeout=PATIENCE)


def test_completions(client: OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt="The result is", max_tokens=8)
    assert whole.object == "text_completion"
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 0
    chunks = [*client.completions.create(model="tiny", prompt="The result is", max_tokens=8, stream=True)]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_fields_that_engines_ignore_are_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.completions.create(model="tiny", prompt="a", suffix="b")


def test_embeddings(client: OpenAI) -> None:
    """The package asks for base64 by default, and decodes it."""
    answer = client.embeddings.create(model="vectors", input=TEXTS)
    assert [one.index for one in answer.data] == [0, 1, 2]
    vectors = [one.embedding for one in answer.data]
    assert answer.model == "vectors"
    assert answer.usage.prompt_tokens > 0
    plain = client.embeddings.create(model="default", input=TEXTS, encoding_format="float")
    for one, same in zip(vectors, plain.data, strict=True):
        assert one == pytest.approx(same.embedding, abs=1e-6)
        assert math.hypot(*one) == pytest.approx(1, abs=1e-3)
    short = client.embeddings.create(model="vectors", input=TEXTS[0], dimensions=8, encoding_format="float")
    assert len(short.data[0].embedding) == 8
    assert math.hypot(*short.data[0].embedding) == pytest.approx(1)


def test_rerank_by_similarity(real: str) -> None:
    body = {"query": TEXTS[0], "documents": [TEXTS[2], {"text": TEXTS[1]}], "return_documents": True}
    answer = post(f"{real}/v1/rerank", body).raise_for_status().json()
    assert [one["index"] for one in answer["results"]] == [1, 0]
    assert answer["results"][0]["document"] == {"text": TEXTS[1]}
    assert len(post(f"{real}/v1/rerank", {**body, "top_n": 1}).json()["results"]) == 1


WRONG: dict[str, tuple[str, Any, int, str]] = {
    "embedding by a model that chats": ("embeddings", {"model": "tiny", "input": "x"}, 400, "wrong_role"),
    "a chat with a model that embeds": (
        "chat/completions", {"model": "vectors", "messages": [{"role": "user", "content": "x"}]}, 400, "wrong_role",
    ),
    "a response by it": ("responses", {"model": "vectors", "input": "x"}, 400, "wrong_role"),
    "ranking by a model that chats": (
        "rerank", {"model": "tiny", "query": "x", "documents": ["y"]}, 400, "wrong_role",
    ),
    "no input": ("embeddings", {"input": []}, 400, "invalid_request"),
    "mixed input": ("embeddings", {"input": ["x", 1]}, 400, "invalid_request"),
    "no prompt": ("completions", {"prompt": ""}, 400, "invalid_request"),
    "a completion by the echo": ("completions", {"model": "echo", "prompt": "x"}, 400, "unsupported_endpoint"),
    "too long a text": ("embeddings", {"input": "word " * 2000}, 400, "context_length_exceeded"),
    "GET": ("embeddings/", None, 404, "not_found"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors(real: str, name: str) -> None:
    path, body, status, code = WRONG[name]
    answer = post(f"{real}/v1/{path}", body) if body is not None else httpx.get(f"{real}/v1/{path}", timeout=PATIENCE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


TOOLS: dict[str, tuple[str, Any, str]] = {
    "chat/completions": ("v1", lambda tool: {"type": "function", "function": tool}, "tools[0].function.name"),
    "responses": ("v1", lambda tool: {"type": "function", **tool}, "tools[0].name"),
    "messages": ("v1", lambda tool: {"input_schema": {"type": "object"}, **tool}, "tools[0].name"),
    "messages/count_tokens": ("v1", lambda tool: {"input_schema": {"type": "object"}, **tool}, "tools[0].name"),
    "chat": ("api", lambda tool: {"type": "function", "function": tool}, "tools[0].function.name"),
}


@pytest.mark.parametrize("path", TOOLS)
def test_tools_on_every_api(real: str, path: str) -> None:
    """A tool without a name is refused by its place; a null description means none."""
    root, tool, place = TOOLS[path]
    said = {"input": TEXTS[0]} if path == "responses" else {"messages": [{"role": "user", "content": TEXTS[0]}]}
    body = {"model": "tiny", "max_tokens": 4, "stream": False, **said}
    nameless = post(f"{real}/{root}/{path}", {**body, "tools": [tool({"name": ""})]})
    error = nameless.json()["error"]
    assert nameless.status_code == 400
    assert (error if root == "api" else error["message"]).startswith(f"{place}: "), error
    if root != "api":
        assert error["param"] == place
    described = post(f"{real}/{root}/{path}", {**body, "tools": [tool({"name": "f", "description": None})]})
    assert described.status_code == 200, described.text


def test_other_methods(real: str) -> None:
    answer = httpx.get(f"{real}/v1/embeddings", timeout=PATIENCE)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_exact_token_counts(real: str) -> None:
    """/v1/messages/count_tokens returns what the same request then uses."""
    tools = [{"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]
    for more in ({}, {"tools": tools}, {"system": "Be brief."}):
        body = {"model": "tiny", "messages": [{"role": "user", "content": TEXTS[0]}], **more}
        counted = post(f"{real}/v1/messages/count_tokens", body).raise_for_status()
        assert "x-ctxgate-estimate" not in counted.headers
        usage = post(f"{real}/v1/messages", {**body, "max_tokens": 4}).raise_for_status().json()["usage"]
        assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_estimated_token_counts(real: str) -> None:
    body = {"model": "echo", "messages": [{"role": "user", "content": "word " * 100}]}
    counted = post(f"{real}/v1/messages/count_tokens", body).raise_for_status()
    assert counted.headers["x-ctxgate-estimate"] == "true"
    assert 100 <= counted.json()["input_tokens"] <= 200
    tokens = post(f"{real}/v1/responses/input_tokens", {"model": "tiny", "input": TEXTS[0]}).raise_for_status().json()
    assert tokens["object"] == "response.input_tokens"
    assert tokens["input_tokens"] > 5


def test_models(client: OpenAI, real: str) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert [*listed] == ["tiny", "vectors", "echo"]
    extra = listed["tiny"].model_extra or {}
    assert (extra["context_length"], extra["role"], extra["active"]) == (1024, "chat", True)
    assert "embeddings" in (listed["vectors"].model_extra or {})["capabilities"]
    # Unknown values are left out, never null.
    assert "null" not in json.dumps(httpx.get(f"{real}/v1/models", timeout=PATIENCE).json())
    assert httpx.get(f"{real}/", timeout=PATIENCE).status_code == 200

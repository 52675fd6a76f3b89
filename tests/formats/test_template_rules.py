"""Conversations that strict chat templates refuse, through the real engine and on every API."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.app import build
from gateway.config import Config, Model, Server
from tests.conftest import ROOT
from tests.formats.conftest import Serve
from tests.gateway.running import FAST, NO_COMMENTS
from tests.patience import PATIENCE
from tests.provider.server import serve as serve_app

Json = dict[str, Any]

TEMPLATES = {
    "qwen3.5": "lcpp-Qwen3.5-4B",
    "mistral-7b": "hfc-mistral-7b-instruct-v0.3",
    "mistral-nemo": "lcpp-mistralai-Mistral-Nemo-Instruct-2407",
    "ministral-3": "lcpp-mistralai-Ministral-3-14B-Reasoning-2512",
    "gemma-2": "lcpp-google-gemma-2-2b-it",
    "gemma-3": "trl-gemma3",
    "cohere-r7b": "lcpp-CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "cohere": "trl-cohere",
    "llama-3.1": "lcpp-meta-llama-Llama-3.1-8B-Instruct",
}
"""Files of ../shared/conformance/templates."""


@pytest.fixture(scope="module")
def gateway(serve: Serve, shared: Path, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway with a model for each template."""
    # Cohere's own preamble alone is longer than the window that the test model's file names.
    weights = test_model.read_bytes()
    at = weights.index(b".context_length") + len(b".context_length") + 4
    model = tmp_path_factory.mktemp("model") / "long.gguf"
    model.write_bytes(weights[:at] + (8192).to_bytes(4, "little") + weights[at + 4 :])
    models = {}
    for name, file in TEMPLATES.items():
        template = shared / f"conformance/templates/{file}.jinja"
        url = serve("xllamacpp", model, "--ctx-size", "8192", "--chat-template-file", str(template))
        models[name] = Model(name=name, runtime="llama.cpp", base_url=url, defaults={"temperature": 0})
    config = Config(
        source=ROOT / "_models/config.yaml",
        active_model="qwen3.5",
        models=models,
        state_dir=tmp_path_factory.mktemp("state"),
        server=Server(**NO_COMMENTS),
    )
    with ExitStack() as stack:
        yield stack.enter_context(serve_app(build(config), lifespan="on", http=FAST)).removeprefix("http://")


def says(role: str, text: str) -> Json:
    return {"role": role, "content": text}


def calls(*ids: str, text: str | None = None) -> Json:
    function = {"name": "look", "arguments": '{"at": 1}'}
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [{"id": id, "type": "function", "function": function} for id in ids],
    }


def result(id: str) -> Json:
    return {"role": "tool", "tool_call_id": id, "content": f"result {id}"}


ASK = says("user", "first")
MORE = says("user", "second")
ANSWER = says("assistant", "answer")
CONVERSATIONS: dict[str, list[Json]] = {
    "well": [says("system", "rule"), ASK, ANSWER, MORE],
    "two systems": [says("system", "rule"), says("system", "other rule"), ASK],
    "late system": [says("system", "rule"), ASK, ANSWER, says("system", "late rule"), MORE],
    "system at the end": [says("system", "rule"), ASK, ANSWER, MORE, says("system", "late rule")],
    "system and developer": [says("system", "rule"), says("developer", "other rule"), ASK],
    "developer and system": [says("developer", "rule"), says("system", "other rule"), ASK],
    "developer alone": [says("developer", "rule"), ASK],
    "system alone": [says("system", "rule")],
    "two users": [ASK, MORE],
    "two answers": [ASK, ANSWER, says("assistant", "more"), MORE],
    "two answers at the end": [ASK, ANSWER, says("assistant", "more")],
    "assistant first": [ANSWER, ASK],
    "denied call": [ASK, calls("call_1"), MORE],
    "denied call with words": [ASK, calls("call_1", text="I look."), MORE],
    "one of two denied": [ASK, calls("call_1", "call_2"), result("call_1"), MORE],
    "well with a call": [ASK, calls("abcdefgh1"), result("abcdefgh1")],
    "a call's result, with an id of OpenAI": [ASK, calls("call_1"), result("call_1")],
    "user after a result": [ASK, calls("call_1"), result("call_1"), MORE],
    "open call": [ASK, calls("call_1")],
    "result without a call": [ASK, result("call_1")],
    "late result": [ASK, calls("call_1"), MORE, result("call_1")],
    "two calls": [ASK, calls("call_1", "call_2"), result("call_1"), result("call_2"), says("assistant", "done"), MORE],
    "words after words and a call": [ASK, ANSWER, calls("call_1"), result("call_1"), says("assistant", "done"), MORE],
    "everything": [
        *(says("system", "rule"), ANSWER, says("developer", "late rule"), ASK, MORE, calls("call_1")),
        *(says("system", "later rule"), result("call_1"), MORE, says("assistant", "more"), MORE),
    ],
}
SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}}
APIS = ("/v1/chat/completions", "/api/chat", "/v1/messages", "/v1/responses")


def body(api: str, messages: list[Json], *, tools: bool) -> Json:
    """The request in the words of the API."""
    function = {"name": "look", "parameters": SCHEMA}
    chat_tools = {"tools": [{"type": "function", "function": function}]} if tools else {}
    if api == "/v1/chat/completions":
        return {"messages": messages, "max_tokens": 2, **chat_tools}
    if api == "/api/chat":
        return {"messages": [_ollama(each) for each in messages], "options": {"num_predict": 2}, **chat_tools}
    if api == "/v1/messages":
        found = [_anthropic(each) for each in messages]
        return {
            "messages": found,
            "max_tokens": 2,
            **({"tools": [{"name": "look", "input_schema": SCHEMA}]} if tools else {}),
        }
    items = [item for each in messages for item in _items(each)]
    return {
        "input": items,
        "max_output_tokens": 2,
        "store": False,
        **({"tools": [{"type": "function", **function}]} if tools else {}),
    }


def _ollama(message: Json) -> Json:
    found = {**message, "content": message["content"] or ""}
    if "tool_calls" in message:
        found["tool_calls"] = [{"function": {"name": "look", "arguments": {"at": 1}}} for _ in message["tool_calls"]]
    return found


def _anthropic(message: Json) -> Json:
    if message["role"] == "tool":
        block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [block]}
    blocks = [{"type": "text", "text": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        blocks.append({"type": "tool_use", "id": call["id"], "name": "look", "input": {"at": 1}})
    return {"role": message["role"].replace("developer", "system"), "content": blocks}


def _items(message: Json) -> Iterator[Json]:
    if message["role"] == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        return
    if message["content"]:
        yield {"type": "message", "role": message["role"], "content": message["content"]}
    for call in message.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], "name": "look", "arguments": '{"at": 1}'}


def ask(gateway: str, path: str, body: Json) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(gateway, timeout=PATIENCE)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


UNREAD = "The model produced output that does not match"
"""The template took the conversation, but the test model doesn't write as Cohere's models do, which llama.cpp asks of
it."""

NO_TOOLS = ("gemma-2", "gemma-3", "cohere")
"""Templates that have no place for tools, so that calls become text."""


@pytest.mark.some(4)
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_no_template_refuses_it(gateway: str, template: str, name: str) -> None:
    messages = CONVERSATIONS[name]
    called = any("tool_calls" in message for message in messages)
    for api in APIS:
        for stream in (False, True):
            wanted = {**body(api, messages, tools=called), "model": template, "stream": stream}
            status, headers, text = ask(gateway, api, wanted)
            assert status == 200 or UNREAD in text, (api, stream, text)
            assert "template_refused" not in text, (api, stream, text)
            if name == "well" or (name == "well with a call" and template not in NO_TOOLS and api != "/api/chat"):
                assert "x-ctxgate-healed" not in headers, (api, stream)


@pytest.mark.parametrize("api", APIS[:2])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_answer_says_what_was_changed(gateway: str, api: str, stream: bool) -> None:
    messages = [says("system", "rule"), says("system", "other rule"), ANSWER, ASK, MORE]
    wanted = {**body(api, messages, tools=False), "model": "mistral-nemo", "stream": stream}
    _, headers, text = ask(gateway, api, wanted)
    assert headers["x-ctxgate-healed"] == "system_messages=1, joined_messages=1, added_messages=1"
    if api == "/v1/chat/completions":
        told = '"warnings":[{"code":"system_messages","text":"system or developer messages joined with the first one'
        assert told in text
    _, headers, text = ask(gateway, api, {**wanted, "model": "qwen3.5"})
    assert headers["x-ctxgate-healed"] == "system_messages=1", "no more than the template asks for"


def test_count_tokens_counts_what_is_sent(gateway: str) -> None:
    """Of a conversation that the template refuses as it is."""
    messages = [{"role": "assistant", "content": "answer"}, {"role": "user", "content": "first"}]
    wanted = {"model": "mistral-nemo", "messages": messages}
    status, _, counted = ask(gateway, "/v1/messages/count_tokens", wanted)
    _, _, answered = ask(gateway, "/v1/messages", {**wanted, "max_tokens": 2})
    usage = json.loads(answered)["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert (status, json.loads(counted)["input_tokens"]) == (200, read)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
def test_what_remains_is_refused_in_our_words(gateway: str, api: str, stream: bool) -> None:
    """An answer without any text: nothing is left that Qwen's template takes."""
    wanted = {**body(api, [says("user", "<tool_response></tool_response>")], tools=False), "model": "qwen3.5"}
    status, _, text = ask(gateway, api, {**wanted, "stream": stream})
    assert status == 400
    assert "the model's chat template doesn't take this conversation: No user query found in messages" in text
    assert not [trace for trace in ("Jinja", "raise_exception", "-----", "source") if trace in text]


@pytest.mark.parametrize(
    ("thinking", "kind"), [(None, "text"), ({"type": "enabled", "budget_tokens": 1024}, "thinking")]
)
def test_a_model_thinks_only_if_asked(gateway: str, thinking: Json | None, kind: str) -> None:
    """Qwen's template opens the model's thoughts unless told not to."""
    wanted = {**body("/v1/messages", [ASK], tools=False), "model": "qwen3.5", "max_tokens": 16}
    asked = wanted if thinking is None else {**wanted, "thinking": thinking}
    _, _, text = ask(gateway, "/v1/messages", asked)
    assert [block["type"] for block in json.loads(text)["content"]] == [kind]
    _, _, text = ask(gateway, "/v1/messages", {**asked, "stream": True})
    assert f'"content_block":{{"type":"{kind}"' in text
    _, _, counted = ask(gateway, "/v1/messages/count_tokens", wanted)
    _, _, more = ask(gateway, "/v1/messages/count_tokens", {**wanted, "thinking": {"type": "enabled"}})
    assert json.loads(counted) != json.loads(more), "the prompts differ"

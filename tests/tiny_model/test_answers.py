"""The model file itself, and its answers through the real llama.cpp engine."""

import json
import struct
import urllib.request
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import xllamacpp

from scripts.tiny_model.data import conversations
from scripts.tiny_model.dialect import Conversation, Message, render
from scripts.tiny_model.evaluate import ask, open_server, openai_messages
from scripts.tiny_model.tools import TOOLS
from tests.patience import PATIENCE

FOLDER = Path(__file__).parents[2] / "_models" / "test"
MODEL = FOLDER / "ctxgate-test-tools.gguf"
SPELT_AS_JSON = {"update_record", "add", "plot_points"}
PROMPTS: list[dict[str, Any]] = json.loads((FOLDER / "prompts.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def server() -> xllamacpp.Server:
    return open_server(MODEL)


def post(server: xllamacpp.Server, path: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(
        server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
        data: bytes = reply.read()
    return data


def metadata(key: str) -> str:
    """A string of the GGUF's metadata."""
    with MODEL.open("rb") as file:
        head = file.read(1 << 16)
    kind, length = struct.unpack_from("<IQ", after := head.partition(key.encode())[2])
    assert kind == 8, "a GGUF string"
    return after[12 : 12 + length].decode()


def test_is_small() -> None:
    assert MODEL.stat().st_size <= 3_000_000


def test_says_that_it_is_a_test_model() -> None:
    assert metadata("general.name") == "ctxgate-test-tools"
    assert metadata("general.description").startswith("TEST MODEL")
    assert metadata("general.license") == "MIT"


@pytest.mark.parametrize("prompt", PROMPTS, ids=[prompt["name"] for prompt in PROMPTS])
def test_answers_as_documented(server: xllamacpp.Server, prompt: dict[str, Any]) -> None:
    text, calls = ask(server, prompt["messages"], prompt["tools"])
    expect = prompt["expect"]
    assert calls == [(call["name"], call["arguments"]) for call in expect.get("tool_calls", [])]
    assert text == expect.get("content", "")


def test_documented_prompts_use_the_documented_tools() -> None:
    for prompt in PROMPTS:
        for tool in prompt["tools"]:
            assert tool == TOOLS[tool["function"]["name"]]


def test_model_card_lists_every_prompt() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [prompt["name"] for prompt in PROMPTS if f"| {prompt['name']} |" not in card] == []


def same_form(made: Conversation) -> bool:
    """Whether the engine's rendering can equal ours: it fills in absent descriptions and drops `strict`; the template
    writes nested literals and whole floats as JSON does and has no place for text after a call."""
    functions = [tool["function"] for tool in made.tools]
    return all("description" in function and "strict" not in function for function in functions) and not any(
        message.after or any(call.name in SPELT_AS_JSON for call in message.calls) for message in made.messages
    )


def test_template_renders_what_the_model_was_trained_on(server: xllamacpp.Server) -> None:
    checked = 0
    for made in islice(conversations(1), 120):
        if made.sort_keys or made.json_arguments or not same_form(made):
            continue
        # The engine reads a last assistant message as a prefix to continue: close with a user's.
        messages = (*made.messages, Message("user", "Hi"))
        trained = "".join(text for text, _ in render(replace(made, messages=messages)))
        body = {"messages": openai_messages(messages), "tools": list(made.tools)}
        assert json.loads(post(server, "/apply-template", body))["prompt"] == trained + "<|im_start|>assistant\n"
        checked += 1
    assert checked > 30


def test_streams_a_call_name_first_and_arguments_in_pieces(server: xllamacpp.Server) -> None:
    prompt = next(prompt for prompt in PROMPTS if prompt["name"] == "dotted_call")
    body = {"messages": prompt["messages"], "tools": prompt["tools"], "temperature": 0, "stream": True}
    events = post(server, "/v1/chat/completions", body).decode().split("\n\n")
    chunks = [json.loads(event[6:])["choices"][0] for event in events if event.startswith("data: {")]
    deltas = [call["function"] for chunk in chunks for call in chunk["delta"].get("tool_calls", [])]
    expected = prompt["expect"]["tool_calls"][0]
    assert deltas[0]["name"] == expected["name"]
    assert len(deltas) > 3
    assert json.loads("".join(delta["arguments"] for delta in deltas)) == expected["arguments"]
    assert chunks[-1]["finish_reason"] == "tool_calls"
    assert events[-2] == "data: [DONE]"


def test_raw_completion_is_the_bare_dialect(server: xllamacpp.Server) -> None:
    """Control tokens are not printed: what an engine without tool parsing hands on."""
    prompt = next(prompt for prompt in PROMPTS if prompt["name"] == "dotted_call")
    rendered = json.loads(post(server, "/apply-template", {key: prompt[key] for key in ("messages", "tools")}))
    body = {"prompt": rendered["prompt"], "temperature": 0, "max_tokens": 64}
    reply = json.loads(post(server, "/v1/completions", body))
    assert reply["choices"][0]["text"] == '[filesystem.list_dir(path="/Users/chintan/Documents")]'

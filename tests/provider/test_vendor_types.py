"""Exchanges of the Anthropic and Google mappings, held to the types that the vendors publish for their clients."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from gateway.provider import (
    AssistantMessage,
    ImageBlock,
    InlineSource,
    Message,
    RuntimeConfig,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolCall,
    ToolChoiceForce,
    ToolMessage,
    UserMessage,
)

from . import anthropic_exchanges, gemini_exchanges

LATER = "a reason of a later version"
"""No published type has it; a client must live with it all the same."""
SIGHT = ImageBlock(InlineSource("aGk="), "image/png")
TALK: list[Message] = [
    SystemMessage("Be brief."),
    UserMessage([TextBlock("What is in it?"), SIGHT]),
    AssistantMessage((ThinkingBlock("I look.", "c2ln"), TextBlock("I look.")), (ToolCall("c1", "look", {"at": 1}),)),
    ToolMessage("a cat", "c1"),
    UserMessage("Sure?"),
]
LOOK = Tool("look", "Looks.", {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]})
CONFIG = RuntimeConfig(max_tokens=100, temperature=0.5, top_p=0.9, stop_sequences=["END"])


@pytest.fixture(scope="module")
def claude() -> Any:
    # Importing these takes seconds; at the top of the file each worker of pytest-xdist would pay them.
    return import_module("anthropic.types")


@pytest.fixture(scope="module")
def gemini() -> Any:
    return import_module("google.genai.types")


def unknown(value: Any, path: str = "") -> list[str]:
    """Fields that the type doesn't have; Anthropic's types take them in silence."""
    if isinstance(value, BaseModel):
        extra = [f"{path}.{name}" for name in value.model_extra or ()]
        fields = {name: getattr(value, name) for name in value.model_fields_set}
        return extra + [each for name, field in fields.items() for each in unknown(field, f"{path}.{name}")]
    if isinstance(value, list):
        return [each for index, item in enumerate(value) for each in unknown(item, f"{path}[{index}]")]
    return []


@pytest.mark.parametrize("name", [name for name in anthropic_exchanges.ANSWERS if name != LATER])
def test_anthropics_answers_and_events(claude: Any, name: str) -> None:
    body: dict[str, Any] = anthropic_exchanges.ANSWERS[name][0]
    assert not unknown(TypeAdapter(claude.Message).validate_python(body))
    event: TypeAdapter[Any] = TypeAdapter(claude.RawMessageStreamEvent)
    for each in anthropic_exchanges.events(body):
        if each["type"] != "ping":  # the documentation has it, the types don't
            assert not unknown(event.validate_python(each))


@pytest.mark.parametrize("name", [name for name in gemini_exchanges.ANSWERS if name != LATER])
def test_googles_answers(gemini: Any, name: str) -> None:
    # Its types forbid what they don't know, and warn of unknown values.
    with warnings.catch_warnings(action="error"):
        gemini.GenerateContentResponse.model_validate(gemini_exchanges.ANSWERS[name][0])


@pytest.mark.parametrize("choice", [None, "auto", "required", ToolChoiceForce("look")], ids=str)
async def test_requests_to_anthropic(claude: Any, choice: Any) -> None:
    server = anthropic_exchanges.Server(anthropic_exchanges.message(anthropic_exchanges.text("ok")))
    await server.ask(TALK, CONFIG, tools=[LOOK], tool_choice=choice)
    body = server.body
    asked: TypeAdapter[Any] = TypeAdapter(claude.MessageCreateParams)
    asked.validate_python(body)
    # The specification maps the sampling fields, which the newest client of Anthropic's doesn't offer any more.
    known = {*claude.message_create_params.MessageCreateParamsBase.__annotations__, "stream", "temperature", "top_p"}
    assert set(body) <= known
    listed: TypeAdapter[Any] = TypeAdapter(list[claude.MessageParam])
    listed.validate_python([{**each, "content": [*each["content"]]} for each in body["messages"]])


@pytest.mark.parametrize("choice", [None, "auto", "required", ToolChoiceForce("look")], ids=str)
async def test_requests_to_google(gemini: Any, choice: Any) -> None:
    server = gemini_exchanges.Server(gemini_exchanges.candidate(gemini_exchanges.text("ok")))
    await server.ask(TALK, config=CONFIG, tools=[LOOK], tool_choice=choice)
    parts: dict[str, Any] = {
        "contents": list[gemini.Content],
        "systemInstruction": gemini.Content,
        "tools": list[gemini.Tool],
        "toolConfig": gemini.ToolConfig,
        "generationConfig": gemini.GenerationConfig,
    }
    with warnings.catch_warnings(action="error"):
        for name, value in server.body.items():
            TypeAdapter(parts[name]).validate_python(value)

"""Transcripts: laws that hold for every conversation, and what each API leaves out."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import ProviderInvalidRequest
from gateway.provider import (
    AssistantMessage,
    Capabilities,
    ImageBlock,
    InlineSource,
    Message,
    RedactedThinkingBlock,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolMessage,
    UrlSource,
    UserMessage,
)
from gateway.provider.transcript import Mapped, Transcript
from gateway.provider.validation import check_messages

from .strategies import conversations

MAPPED: tuple[Mapped, ...] = get_args(Mapped)

WEATHER = ToolCall("c1", "weather", {"city": "Paris"})
PLAIN = Transcript(
    (
        SystemMessage("Be brief."),
        UserMessage("Weather?"),
        AssistantMessage("I look.", (WEATHER,)),
        ToolMessage("sunny", "c1"),
        UserMessage((TextBlock("And this?"), ImageBlock(InlineSource("aGk="), "image/png"))),
        AssistantMessage("A cat."),
        UserMessage("Thanks"),
    )
)
"""What every API carries."""


@given(conversations())
def test_json_keeps_everything(messages: list[Message]) -> None:
    transcript = Transcript(tuple(messages))
    assert Transcript.from_json(transcript.to_json()) == transcript


@pytest.mark.parametrize("mapping", MAPPED)
@given(messages=conversations())
@example(messages=[UserMessage("?"), AssistantMessage((ThinkingBlock("unsigned"), TextBlock("a"))), UserMessage("!")])
@example(messages=[UserMessage("?"), AssistantMessage((TextBlock("a", "signed"),)), UserMessage("!")])
def test_reading_what_was_rendered_renders_the_same(mapping: Mapped, messages: list[Message]) -> None:
    fields = Transcript(tuple(messages)).render(mapping)
    read = Transcript.read(mapping, fields)
    assert read.render(mapping) == fields
    check_messages(read, {}, Capabilities())


@pytest.mark.parametrize("mapping", MAPPED)
@given(messages=conversations())
def test_what_was_said_to_and_by_a_model_always_arrives(mapping: Mapped, messages: list[Message]) -> None:
    def said(transcript: Any) -> list[Any]:
        """The texts, calls and results in order."""
        found: list[Any] = []
        for message in transcript:
            if isinstance(message, AssistantMessage):
                found += [message.text] * bool(message.text)
                found += [(call.id, call.name, call.arguments) for call in message.tool_calls]
            elif isinstance(message.content, str):
                found.append(message.content)
            else:
                found += [block.text for block in message.content if isinstance(block, TextBlock)]
        return found

    assert said(Transcript.read(mapping, Transcript(tuple(messages)).render(mapping))) == said(messages)


@pytest.mark.parametrize("mapping", MAPPED)
def test_a_plain_conversation_comes_back_as_it_was(mapping: Mapped) -> None:
    assert Transcript.read(mapping, PLAIN.render(mapping)) == PLAIN


THOUGHT = AssistantMessage((ThinkingBlock("hm", "sig"), RedactedThinkingBlock("xyz"), TextBlock("42")))
SUMMED = AssistantMessage((ThinkingBlock("hm"), TextBlock("42", "sig")), (ToolCall("c", "t", {}, "more"),))


@pytest.mark.parametrize(
    ("mapping", "message", "left"),
    [
        pytest.param("openai", THOUGHT, AssistantMessage("42"), id="openai: no reasoning"),
        pytest.param("openai", SUMMED, AssistantMessage("42", (ToolCall("c", "t", {}),)), id="openai: no signatures"),
        pytest.param("anthropic", THOUGHT, THOUGHT, id="anthropic: its own reasoning"),
        pytest.param(
            "anthropic", SUMMED, AssistantMessage("42", (ToolCall("c", "t", {}),)), id="anthropic: not Gemini's"
        ),
        pytest.param("gemini", SUMMED, SUMMED, id="gemini: its own reasoning"),
        pytest.param("gemini", THOUGHT, AssistantMessage("42"), id="gemini: not Anthropic's"),
    ],
)
def test_reasoning_goes_only_to_whom_it_belongs(mapping: Mapped, message: AssistantMessage, left: Message) -> None:
    transcript = Transcript((UserMessage("?"), message))
    assert Transcript.read(mapping, transcript.render(mapping))[1] == left
    assert transcript[1] is message


A, B, D = ({"type": "text", "text": name} for name in "abd")
RESULT = {"type": "tool_result", "tool_use_id": "c"}
IMAGE = {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "low"}}


@pytest.mark.parametrize(
    ("mapping", "fields", "messages"),
    [
        pytest.param(
            "anthropic",
            {"messages": [{"role": "user", "content": [A, {**RESULT, "content": [B]}, D]}]},
            [UserMessage((TextBlock("a"),)), ToolMessage("b", "c"), UserMessage((TextBlock("d"),))],
            id="anthropic: results between texts",
        ),
        pytest.param(
            "openai",
            {"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": [IMAGE]}]},
            [SystemMessage("s"), UserMessage((ImageBlock(UrlSource("http://x/y.png"), None, "low"),))],
            id="openai: developer, image",
        ),
        pytest.param(
            "gemini",
            {"contents": [{"role": "user", "parts": [{"functionResponse": {"id": "c", "response": {"a": 1}}}]}]},
            [ToolMessage('{"a":1}', "c")],
            id="gemini: another shape of result",
        ),
    ],
)
def test_conversations_of_other_clients_are_read(
    mapping: Mapped, fields: dict[str, Any], messages: list[Message]
) -> None:
    assert list(Transcript.read(mapping, fields)) == messages


@pytest.mark.parametrize("mapping", MAPPED)
@pytest.mark.parametrize("fields", [{}, {"messages": [1], "contents": [1]}, {"messages": 1, "contents": 1}])
def test_what_is_no_conversation_is_refused(mapping: Mapped, fields: dict[str, Any]) -> None:
    with pytest.raises(ProviderInvalidRequest, match=mapping):
        Transcript.read(mapping, fields)


@pytest.mark.parametrize("text", ["", "1", '[{"role": "judge"}]', '[{"role": "user", "content": [{"type": "smell"}]}]'])
def test_what_is_no_transcript_is_refused(text: str) -> None:
    with pytest.raises(ProviderInvalidRequest, match="not a transcript"):
        Transcript.from_json(text)


def test_an_unknown_mapping_is_refused() -> None:
    with pytest.raises(ProviderInvalidRequest, match="semaphore"):
        PLAIN.render("semaphore")  # type: ignore[arg-type]


@given(conversations(), st.integers(-3, 3))
def test_a_transcript_is_a_sequence(messages: list[Message], at: int) -> None:
    transcript = Transcript().adding(*messages)
    assert (len(transcript), list(transcript), transcript[at:]) == (len(messages), messages, tuple(messages[at:]))

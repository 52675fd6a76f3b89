"""What is refused before anything is sent, and which field the refusal names (OpenArmature §3–§5)."""

from __future__ import annotations

from typing import Any

import pytest
import respx

from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderUnsupportedContentBlock
from gateway.provider import (
    AssistantMessage,
    Capabilities,
    ImageBlock,
    InlineSource,
    OpenAIProvider,
    RuntimeConfig,
    SystemMessage,
    TextBlock,
    Tool,
    ToolCall,
    ToolChoiceForce,
    ToolMessage,
    UrlSource,
    UserMessage,
)

from .doubles import provider_of

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD = Tool("add", "Adds.", OBJECT)
HI = UserMessage("hi")
PNG = InlineSource("QUJD")


def calling(*calls: ToolCall) -> list[Any]:
    return [HI, AssistantMessage(tool_calls=calls), ToolMessage("3", calls[0].id if calls else "x")]


async def refusal(capabilities: Capabilities | None = None, **arguments: Any) -> GatewayError:
    """The error of a call that must not reach the wire: no route takes it."""
    with pytest.raises(GatewayError) as caught:
        await provider_of(respx.MockRouter(), capabilities=capabilities).complete(**{"messages": [HI], **arguments})
    return caught.value


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        pytest.param({"messages": []}, "messages", id="no messages"),
        pytest.param({"messages": "hi"}, "messages", id="a string for messages"),
        pytest.param({"messages": (m for m in [HI])}, "messages", id="a generator for messages"),
        pytest.param({"messages": [{"role": "user", "content": "hi"}]}, "messages[0]", id="a dict for a message"),
        pytest.param({"messages": [HI, SystemMessage("x")]}, "messages[1]", id="late system message"),
        pytest.param({"messages": [SystemMessage(""), HI]}, "messages[0].content", id="empty system message"),
        pytest.param({"messages": [SystemMessage("x")]}, "messages[0]", id="system message alone"),
        pytest.param({"messages": [AssistantMessage("x"), HI]}, "messages[0]", id="begins with the assistant"),
        pytest.param({"messages": [HI, AssistantMessage("x")]}, "messages[1]", id="ends with the assistant"),
        pytest.param({"messages": [HI, AssistantMessage(), HI]}, "messages[1]", id="empty assistant message"),
        pytest.param({"messages": [UserMessage("")]}, "messages[0].content", id="empty user message"),
        pytest.param({"messages": [UserMessage(7)]}, "messages[0].content", id="number for content"),  # type: ignore[arg-type]
        pytest.param({"messages": [UserMessage([])]}, "messages[0].content", id="no blocks"),
        pytest.param(
            {"messages": [UserMessage([TextBlock("")])]}, "messages[0].content[0].text", id="empty text block"
        ),
        pytest.param({"messages": [UserMessage(["x"])]}, "messages[0].content[0]", id="a string for a block"),  # type: ignore[list-item]
        pytest.param(
            {"messages": [UserMessage([ImageBlock(UrlSource(""))])]},
            "messages[0].content[0].source.url",
            id="empty url",
        ),
        pytest.param(
            {"messages": [UserMessage([ImageBlock(InlineSource(""), "image/png")])]},
            "messages[0].content[0].source.base64_data",
            id="empty inline image",
        ),
        pytest.param(
            {"messages": [UserMessage([ImageBlock(PNG, "image/png;x=y,")])]},
            "messages[0].content[0].media_type",
            id="media type that would change the data URI",
        ),
        pytest.param(
            {"messages": [UserMessage([ImageBlock(PNG, "text/html")])]},
            "messages[0].content[0].media_type",
            id="media type that is no image",
        ),
        pytest.param(
            {"messages": [UserMessage([ImageBlock(UrlSource("u"), detail="ultra")])]},  # type: ignore[arg-type]
            "messages[0].content[0].detail",
            id="unknown detail",
        ),
        pytest.param({"messages": [HI, ToolMessage("3", "c1")]}, "messages[1].tool_call_id", id="answer to no call"),
        pytest.param(
            {"messages": [HI, ToolMessage("3", "c1"), AssistantMessage(tool_calls=[ToolCall("c1", "add", {})]), HI]},
            "messages[1].tool_call_id",
            id="answer before its call",
        ),
        pytest.param(
            {"messages": [*calling(ToolCall("c1", "add", {"a": 1})), ToolMessage(None, "c1")]},  # type: ignore[arg-type]
            "messages[3].content",
            id="tool result without text",
        ),
        pytest.param(
            {"messages": calling(ToolCall("", "add", {}))}, "messages[1].tool_calls[0].id", id="tool call without id"
        ),
        pytest.param(
            {"messages": calling(ToolCall("c", "", {}))}, "messages[1].tool_calls[0].name", id="tool call without name"
        ),
        pytest.param(
            {"messages": calling(ToolCall("c", "f", {}), ToolCall("c", "f", {}))},
            "messages[1].tool_calls[1].id",
            id="tool call id twice in a message",
        ),
        pytest.param(
            {"messages": calling(ToolCall("c", "f", None))},
            "messages[1].tool_calls[0].arguments",
            id="unparsed arguments of a degraded answer",
        ),
        pytest.param(
            {"messages": calling(ToolCall("c", "add", {"a": "1"})), "tools": [ADD]},
            "messages[1].tool_calls[0].arguments",
            id="past arguments against the schema",
        ),
        pytest.param({"tools": [ADD, ADD]}, "tools[1].name", id="tool twice"),
        pytest.param({"tools": [Tool("", "d", OBJECT)]}, "tools[0].name", id="tool without name"),
        pytest.param({"tools": [Tool("f", None, OBJECT)]}, "tools[0].description", id="tool without description"),  # type: ignore[arg-type]
        pytest.param({"tools": [{"name": "f"}]}, "tools[0]", id="a dict for a tool"),
        pytest.param({"tools": [Tool("f", "d", {})]}, "tools[0].parameters", id="parameters that are no object schema"),
        pytest.param(
            {"tools": [Tool("f", "d", {"type": "object", "properties": {"a": {"type": "wat"}}})]},
            "tools[0].parameters",
            id="parameters that are no schema",
        ),
        pytest.param(
            {"tools": [Tool("f", "d", {"type": "object", "properties": {"a": {"$ref": "http://evil.test/s"}}})]},
            "tools[0].parameters",
            id="parameters that refer to the network",
        ),
        pytest.param({"tool_choice": "required"}, "tool_choice", id="required without tools"),
        pytest.param({"tool_choice": "sometimes"}, "tool_choice", id="unknown tool choice"),
        pytest.param({"tool_choice": ToolChoiceForce("f")}, "tool_choice", id="forced without tools"),
        pytest.param({"tool_choice": ToolChoiceForce("f"), "tools": [ADD]}, "tool_choice", id="forced tool unknown"),
        pytest.param({"tool_choice": {"type": "tool"}, "tools": [ADD]}, "tool_choice", id="a dict for a tool choice"),
        pytest.param({"config": {"temperature": 0}}, "config", id="a dict for the config"),
        pytest.param({"config": RuntimeConfig(extra=[])}, "config.extra", id="a list for extra"),  # type: ignore[arg-type]
        pytest.param({"config": RuntimeConfig(extra={"model": "x"})}, "config.extra.model", id="extra model"),
        pytest.param({"config": RuntimeConfig(extra={"stream": True})}, "config.extra.stream", id="extra stream"),
        pytest.param(
            {"config": RuntimeConfig(seed=1, extra={"seed": True})}, "config.extra.seed", id="extra against a field"
        ),
        pytest.param({"response_schema": {"type": "array"}}, "response_schema", id="schema of an array"),
        pytest.param(
            {"response_schema": {"type": "object", "required": 3}}, "response_schema", id="schema that is none"
        ),
        pytest.param({"response_schema": "object"}, "response_schema", id="a string for a schema"),
        pytest.param({"response_schema": dict}, "response_schema", id="a class that is no model"),
        pytest.param(
            {"response_schema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}},
            "response_schema",
            id="schema with a dangling reference",
        ),
    ],
)
async def test_refused_with_the_field_at_fault(arguments: dict[str, Any], param: str) -> None:
    error = await refusal(**arguments)
    assert isinstance(error, ProviderInvalidRequest)
    assert error.param == param
    assert error.message.startswith(param.split("[")[0].split(".")[0])


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"config": RuntimeConfig(temperature=float("nan"))}, id="NaN"),
        pytest.param({"config": RuntimeConfig(extra={"a": {1, 2}})}, id="a set"),
        pytest.param({"messages": [UserMessage("lone \ud800")]}, id="lone surrogate"),
        pytest.param({"messages": calling(ToolCall("c", "f", {"a": float("inf")}))}, id="infinite argument"),
    ],
)
async def test_what_json_cannot_say_is_refused(arguments: dict[str, Any]) -> None:
    assert isinstance(await refusal(**arguments), ProviderInvalidRequest)


@pytest.mark.parametrize(
    ("capabilities", "block"),
    [
        pytest.param(Capabilities(image_input=False), ImageBlock(UrlSource("http://x/a.png")), id="no images at all"),
        pytest.param(
            Capabilities(image_media_types=frozenset({"image/png"})), ImageBlock(PNG, "image/webp"), id="not this type"
        ),
    ],
)
async def test_known_lack_of_images_is_told_before_sending(capabilities: Capabilities, block: ImageBlock) -> None:
    error = await refusal(capabilities, messages=[UserMessage([block])])
    assert isinstance(error, ProviderUnsupportedContentBlock)
    assert error.param is not None
    assert error.param.startswith("messages[0].content[0]")


@pytest.mark.parametrize(
    "base_url",
    ["", "server", "ftp://server", "http://", "http://u:p@server", "http://server?x=1", "http://s:port", "http://s#f"],
)
def test_a_base_url_that_cannot_be_used_is_refused_without_being_shown(base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as caught:
        OpenAIProvider(base_url, "m")
    assert "u:p" not in str(caught.value)


def test_an_api_key_that_cannot_be_sent_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        OpenAIProvider("http://server", "m", "secret\nkey")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://server", "http://server/v1"),
        ("http://server/", "http://server/v1"),
        ("http://server:8080/v1/", "http://server:8080/v1"),
        ("https://server/openai/v4", "https://server/openai/v4"),
    ],
)
def test_base_url_with_and_without_v1(given: str, used: str) -> None:
    assert OpenAIProvider(given, "m").base_url == used


def test_lists_become_tuples() -> None:
    blocks = [TextBlock("a")]
    message = UserMessage(blocks)
    blocks.append(TextBlock("b"))
    assert message.content == (TextBlock("a"),)
    assert AssistantMessage(tool_calls=[]).tool_calls == ()


async def test_a_misspelt_option_is_an_error_of_the_program() -> None:
    options: dict[str, Any] = {"respons_schema": None}
    with pytest.raises(TypeError, match="respons_schema"):
        await provider_of(respx.MockRouter()).complete([UserMessage("hi")], **options)

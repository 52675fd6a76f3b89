"""Rewrites request messages for engines that support only part of OpenAI's format.

Most requests need no rewriting: a regular expression over the raw bytes decides whether to decode them. A false
positive costs time and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from msgspec import Raw

from gateway.errors import ImagesUnsupported, ProviderInvalidRequest, ProviderUnsupportedContentBlock
from gateway.wire.chat import decode, encode

Edit = Callable[[dict[str, Any], int], None]
"""Changes one message in place; the number is its position in `messages`."""

DEVELOPER = rb'"developer"'
TOOL_CALLS = rb'"tool_calls"'
NULL_CONTENT = rb'"content"\s*:\s*null'
CONTENT_PARTS = rb'"content"\s*:\s*\['
MEDIA = rb'"(?:image_url|audio_url|video_url|input_audio|input_video|file)"'
REFUSAL = rb'"refusal"\s*(?::\s*"|[,}])'
"""A refusal, or a part of that type; clients send a null in each answer without one."""
ESCAPED_ASCII = rb"\\u00[2-7]"
"""What may spell a name in another way: `"image\\u005furl"`."""
EMPTY_ARGUMENTS = rb'"arguments"\s*:\s*""'


def needs(*patterns: bytes) -> Callable[[bytes], re.Match[bytes] | None]:
    """Returns a search of raw messages for any of the patterns."""
    return re.compile(b"|".join(patterns)).search


def edit(fields: dict[str, Raw], *edits: Edit) -> None:
    """Raises what they raise, and ProviderInvalidRequest for what is no chat."""
    messages = decode(fields["messages"])
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ProviderInvalidRequest("messages: must be a list of objects", param="messages")
    for position, message in enumerate(messages):
        for change in edits:
            change(message, position)
    fields["messages"] = Raw(encode(messages))


def start(raw: bytes) -> Raw | None:
    """The system messages at the start of a chat, before another user's words; None for what isn't a chat."""
    told = decode(raw)
    if not isinstance(told, list):
        return None
    system = takewhile(lambda each: isinstance(each, dict) and each.get("role") in ("system", "developer"), told)
    return Raw(encode([*system, {"role": "user", "content": "."}]))


def developer_is_system(message: dict[str, Any], position: int) -> None:
    """Chat templates don't know `developer`, OpenAI's newer name of `system`."""
    if message.get("role") == "developer":
        message["role"] = "system"


def content_is_text(message: dict[str, Any], position: int) -> None:
    """Joins text parts; turns null content into an empty string.

    Raises ProviderUnsupportedContentBlock for any other part.
    """
    content = message.get("content")
    if content is None:
        message["content"] = ""
    elif isinstance(content, list):
        texts = []
        for at, part in enumerate(content):
            if not isinstance(part, dict) or part.get("type") != "text":
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                refuse = ImagesUnsupported if kind == "image_url" else ProviderUnsupportedContentBlock
                raise refuse(
                    f"this model's engine supports text only, not content of type {kind!r}",
                    param=f"messages[{position}].content[{at}]",
                )
            texts.append(str(part.get("text", "")))
        message["content"] = "".join(texts)


def media_is_data(message: dict[str, Any], position: int) -> None:
    """Raises ProviderUnsupportedContentBlock for an image, audio or video that its engine would have to fetch.

    Engines don't check where a URL leads: to other services of this machine, for example.
    """
    content = message.get("content")
    for at, part in enumerate(content if isinstance(content, list) else ()):
        for name, value in part.items() if isinstance(part, dict) else ():
            url = value.get("url") if isinstance(value, dict) else value if name.endswith("url") else None
            if url is not None and not (isinstance(url, str) and url.startswith("data:")):
                raise ProviderUnsupportedContentBlock(
                    f"this model's engine takes images, audio and video as data: URLs alone; {name} is another URL",
                    param=f"messages[{position}].content[{at}]",
                )


def refusals_are_text(message: dict[str, Any], position: int) -> None:
    """Writes the model's past refusals as text: chat templates support neither the field nor the part."""
    content = message.get("content")
    if not content and isinstance(message.get("refusal"), str):
        message["content"] = message.pop("refusal")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "refusal":
            part |= {"type": "text", "text": str(part.pop("refusal", ""))}


def arguments_are_text(message: dict[str, Any], position: int) -> None:
    """Writes past calls' arguments as OpenAI does: a JSON object in a string, `{}` if there are none."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        arguments = function.get("arguments") or {}
        function["arguments"] = arguments if isinstance(arguments, str) else encode(arguments).decode()

"""llama-cpp-python's server (`python -m llama_cpp.server`)."""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

from gateway.backends import messages
from gateway.backends.openai import HTTPReply, OpenAIBackend, error_message
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderInvalidResponse
from gateway.upstream import Response
from gateway.wire.chat import encode

_NULL = Raw(b"null")
_FALSE = Raw(b"false")
_ONE = Raw(b"1")

_needs_edit = messages.needs(
    *(messages.DEVELOPER, messages.TOOL_CALLS), *(messages.NULL_CONTENT, messages.CONTENT_PARTS, messages.REFUSAL)
)

BAD_INPUT = ("validation error", "not found in tools", "can only concatenate str", "has no attribute 'items'")
"""Parts of a 500's message that blame the request."""


class LlamaCppPythonBackend(OpenAIBackend):
    """Never forwards a grammar, nor a schema, which becomes one: an invalid grammar crashes the server."""

    def adapt(self, fields: dict[str, Raw]) -> None:
        if fields.get("grammar", _NULL) != _NULL:
            raise ProviderInvalidRequest(
                "grammar: not supported by runtime llama-cpp-python, which invalid ones crash; use runtime llama.cpp",
                param="grammar",
            )
        _check_response_format(fields.get("response_format"))
        # The server ignores max_completion_tokens, so the answer would fill the whole context.
        if "max_completion_tokens" in fields:
            fields["max_tokens"] = fields.pop("max_completion_tokens")
        if _needs_edit(fields["messages"]):
            as_text = messages.refusals_are_text, messages.content_is_text, messages.arguments_are_text
            messages.edit(fields, messages.developer_is_system, *as_text)

    def reply(self, response: Response, fields: dict[str, Raw]) -> HTTPReply:
        return _Stream(response, self, fields)

    async def why_empty(self, fields: dict[str, Raw]) -> GatewayError:
        """Finds out why a stream was empty: asked for a whole answer, the server reports the error."""
        whole = {name: value for name, value in fields.items() if name != "stream_options"}
        response = await self.upstream.request(self._chat_head, encode({**whole, "stream": _FALSE, "max_tokens": _ONE}))
        if response.status != 200:
            return await self.refusal(response)
        response.close()
        return ProviderInvalidResponse("the engine answered 200 with an empty stream")

    def error(self, status: int, body: bytes) -> GatewayError:
        message, _ = error_message(body)
        if status == 500 and any(words in message for words in BAD_INPUT):
            text, param = _validation_error(message)
            return ProviderInvalidRequest(f"the engine rejected the request: {text}", param=param)
        return super().error(status, body)


class _Stream(HTTPReply):
    """The server answers an oversized prompt with 200 and an empty stream, without even `[DONE]`."""

    __slots__ = ("_backend", "_fields")

    def __init__(self, response: Response, backend: LlamaCppPythonBackend, fields: dict[str, Raw]) -> None:
        super().__init__(response)
        self._backend = backend
        self._fields = fields

    async def empty(self) -> GatewayError:
        return await self._backend.why_empty(self._fields)


def _check_response_format(raw: Raw | None) -> None:
    value = msgspec.json.decode(raw) if raw is not None else None
    if isinstance(value, dict) and value.get("type") == "json_schema":
        raise ProviderInvalidRequest(
            "response_format: runtime llama-cpp-python can't enforce a schema; use runtime llama.cpp",
            param="response_format",
        )


def _validation_error(message: str) -> tuple[str, str | None]:
    """The first of pydantic's errors and its field. Leaves out the server's file names."""
    place = re.search(r"'loc': \('body'(?:, )?([^)]*)\)", message)
    reason = re.search(r"""'msg': (?:'([^']*)'|"([^"]*)")""", message)
    if place is None or reason is None:
        return message.partition("\n\n  File ")[0], None
    param = ""
    for part in place[1].split(", "):
        if part.strip("'").isdigit():
            param += f"[{part}]"
        elif part.startswith("'") and not part.startswith(("'ChatCompletion", "'literal")):
            param += ("." if param else "") + part.strip("'")
    text = reason[1] or reason[2]
    return (f"{param}: {text}" if param else text), param or None

"""The input of an executed model as the fields of a request, by the model's role. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.config import Role
from gateway.errors import ProviderInvalidRequest


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text, or JSON. system: put before the messages. schema: JSON Schema of the answer."""

    text: str
    system: str | None = None
    schema: str | None = None

    def fields(self, role: Role = "chat") -> dict[str, Any]:
        """chat: JSON with `messages`, or a text as the user's message. embedding: JSON with `input`, or a text.
        rerank: JSON with `query` and `documents`. speech, image: JSON with `input` or `prompt`, or a text.

        Raises ProviderInvalidRequest for empty input, for malformed JSON, and for options that the role doesn't have.
        """
        if not self.text.strip():
            raise ProviderInvalidRequest("no input: give it as arguments or on standard input")
        if "\0" in self.text:
            raise ProviderInvalidRequest("the input contains NUL")
        written = _object(self.text)
        if role == "chat":
            return self._chat(written)
        if self.system is not None or self.schema is not None:
            raise ProviderInvalidRequest(f"--system and --schema are for chats, and this is a model for {role}")
        if role == "rerank":
            if written is None or "documents" not in written:
                raise ProviderInvalidRequest(
                    'the input of a rerank model is {"query": "...", "documents": ["...", ...]}'
                )
            return written
        name = "prompt" if role == "image" else "input"
        return written if written is not None and name in written else {name: _line(self.text)}

    def _chat(self, written: dict[str, Any] | None) -> dict[str, Any]:
        if written is not None and "messages" in written:
            fields = written
        else:
            fields = {"messages": [{"role": "user", "content": _line(self.text)}]}
        if self.system is not None and isinstance(fields["messages"], list):
            fields["messages"] = [{"role": "system", "content": self.system}, *fields["messages"]]
        if self.schema is not None:
            schema = {"name": "answer", "schema": _schema(self.schema), "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return fields


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; None for other text.

    Raises ProviderInvalidRequest for what begins like an object and isn't one: asked as a prompt, a mistake in JSON
    would look like a bad answer.
    """
    stripped = text.strip()
    if not (stripped.startswith("{") and stripped[1:].lstrip()[:1] in ('"', "}")):
        return None
    try:
        found = msgspec.json.decode(stripped)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProviderInvalidRequest(
            f"the input begins like a JSON object, but isn't one: {error}. To ask about it as text, put words before it"
        ) from None
    return found if isinstance(found, dict) else None


def _schema(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProviderInvalidRequest(f"--schema: not valid JSON: {error}") from None


def _line(text: str) -> str:
    """Without the newline that a command's output ends with."""
    return text.removesuffix("\n").removesuffix("\r")

"""Turns a text completion into a chat completion, the format that the rest of the gateway reads."""

from __future__ import annotations

from gateway.backends.collect import collected
from gateway.backends.openai import HTTPReply, json_object, malformed
from gateway.errors import ProviderInvalidResponse
from gateway.upstream import Response
from gateway.wire.chat import encode


class CompletionReply(HTTPReply):
    """A reply read from `/v1/completions`.

    usage: add a usage chunk to a stream.
    """

    __slots__ = ("_seen_choices", "_usage", "by_grammar", "decided", "reasoning_open")

    def __init__(self, response: Response, *, usage: bool, reasoning_open: bool, by_grammar: bool) -> None:
        super().__init__(response)
        self._usage = usage
        self._seen_choices: set[int] = set()
        self.reasoning_open = reasoning_open
        self.by_grammar = by_grammar
        self.decided = None

    async def whole(self) -> bytes:
        if self.collects and self._is_stream():
            return await collected(self)
        body = json_object(await self._response.read())
        if "error" in body:
            return encode(body)
        choices = []
        try:
            for choice in body.get("choices") or ():
                text = choice.pop("text", "")
                choices.append({**choice, "message": {"role": "assistant", "content": text}})
        except (AttributeError, TypeError) as error:
            raise malformed(error) from error
        return encode({**body, "object": "chat.completion", "choices": choices})

    async def payloads(self) -> list[bytes]:
        clean: list[bytes] = []
        for payload in await super().payloads():
            clean += self.translate(payload)
        return clean

    def translate(self, payload: bytes) -> list[bytes]:
        """Turns one completion chunk into chat chunks."""
        body = json_object(payload, self.json)
        if "error" in body:
            return [payload]
        usage = body.pop("usage", None)
        body["object"] = "chat.completion.chunk"
        try:
            for choice in body.get("choices") or ():
                text = choice.pop("text", "")
                index = choice.get("index", 0)
                choice["delta"] = {"content": text} if text else {}
                if index not in self._seen_choices:
                    self._seen_choices.add(index)
                    choice["delta"] = {"role": "assistant", **choice["delta"]}
        except (AttributeError, TypeError) as error:
            raise malformed(error) from error
        chunk = encode(body)
        if usage is None or not self._usage:
            return [chunk]
        return [chunk, encode({**body, "choices": [], "usage": usage})]


def prompt(body: bytes) -> str:
    """Returns the prompt from an answer of `/apply-template`. Raises ProviderInvalidResponse."""
    made = json_object(body).get("prompt")
    if not isinstance(made, str):
        raise ProviderInvalidResponse("the engine's answer to /apply-template has no prompt")
    return made

"""Has a model that hears transcribe the sound in a conversation, for a model that reads text."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from gateway.backends import Forward
from gateway.core.aside import aside
from gateway.core.route import Route
from gateway.errors import ProviderInvalidModel, ProviderInvalidRequest, ProviderInvalidResponse
from gateway.observe.request_log import OK, outcome_of
from gateway.wire.chat import ChatRequest, decode, encode
from gateway.wire.sounds import Sound, sounds, with_texts

MAX_SOUNDS = 16
"""Different ones in one conversation: each costs a transcription, with each turn."""
MAX_ANSWER = 1024 * 1024


class Transcriber:
    def __init__(self, route_of: Callable[[str], Route | None]) -> None:
        """route_of: by the model's name; called anew for each request, since a reload may replace or end a route."""
        self._route_of = route_of

    async def heard(self, request: ChatRequest, model: str) -> ChatRequest:
        """The request with texts in place of its sound. model: the one that hears.

        Raises ProviderInvalidRequest for what is no sound, and the error of the model that hears: a conversation
        without what was said would mislead.
        """
        messages = await aside(request.size, decode, request.fields["messages"])
        found = sounds(messages)
        if len(found) > MAX_SOUNDS:
            raise ProviderInvalidRequest(f"messages: at most {MAX_SOUNDS} different sounds", param="messages")
        if not found:
            return request
        route = self._route_of(model)
        if route is None:
            raise ProviderInvalidModel(f"there is no model {model!r}, which transcribes", param="model")
        before = request.serving.describe
        request.serving.tell(lambda: f"transcribing model={model}")
        try:
            texts = {sound: await self._ask(route, sound, request) for sound in found}
        finally:
            request.serving.tell(before)
        messages, kinds = with_texts(messages, texts)
        fields = {**request.fields, "messages": Raw(encode(messages))}
        return replace(request, fields=fields, changes={**request.changes, **kinds})

    async def _ask(self, route: Route, sound: Sound, of: ChatRequest) -> str:
        tier = of.serving.tier if of.serving.tier != "auto" else None
        meter = route.count(of.api, of.caller, stream=False)
        try:
            async with route.use(tier) as backend:
                sent = await aside(len(sound.data), _form, route.model.upstream_name, sound)
                answer = await backend.forward(sent)
                try:
                    body = b""
                    while piece := await answer.receive():
                        body += piece
                        if len(body) > MAX_ANSWER:
                            raise ProviderInvalidResponse(f"a transcription of more than {MAX_ANSWER} bytes")
                finally:
                    answer.close()
            text = _text(body)
        except BaseException as error:
            meter.end(outcome_of(error))
            raise
        meter.end(OK)
        return text


def _text(body: bytes) -> str:
    try:
        found: Any = decode(body)
        text = found["text"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProviderInvalidResponse(f"a transcription can't be read: {error}") from error
    if not isinstance(text, str):
        raise ProviderInvalidResponse("a transcription has no text")
    return text


def _form(model: str, sound: Sound) -> Forward:
    boundary = secrets.token_hex(16)
    fields = {"model": model, "response_format": "json"}
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    named = f'name="file"; filename="sound.{sound.format}"'
    parts.append(f"Content-Disposition: form-data; {named}\r\nContent-Type: application/octet-stream\r\n\r\n")
    head = f"--{boundary}\r\n".join(("", *parts)).encode()
    body = b"%b%b\r\n--%b--\r\n" % (head, sound.content(), boundary.encode())
    return Forward("POST", "/v1/audio/transcriptions", f"multipart/form-data; boundary={boundary}", body)

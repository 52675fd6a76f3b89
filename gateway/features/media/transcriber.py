"""Has a model that hears transcribe the sound in a conversation, for a model that reads text."""

from __future__ import annotations

import secrets

from msgspec import Raw
from msgspec.structs import replace

from gateway.backends import Forward
from gateway.core.gateway import RouteOf
from gateway.core.in_thread import in_thread_if_large
from gateway.core.route import Route
from gateway.errors import ProviderInvalidModel, ProviderInvalidRequest
from gateway.features.media.forwarded import Asked, whole
from gateway.features.media.wire.sounds import Sound, may_have, sounds, transcript, with_texts
from gateway.wire.chat import ChatRequest, decode, encode

MAX_SOUNDS = 16
"""Different ones in one conversation: each costs a transcription, with each turn."""
MAX_ANSWER = 1024 * 1024


async def heard(route_of: RouteOf, request: ChatRequest, model: str) -> ChatRequest:
    """The request with texts in place of its sound; see `gateway.core.gateway.Hear`.

    Raises ProviderInvalidRequest for what is no sound, and the error of the model that hears: a conversation without
    what was said would mislead.
    """
    if not may_have(request.fields["messages"]):
        return request
    messages = await in_thread_if_large(request.size, decode, request.fields["messages"])
    found = sounds(messages)
    if len(found) > MAX_SOUNDS:
        raise ProviderInvalidRequest(f"messages: at most {MAX_SOUNDS} different sounds", param="messages")
    if not found:
        return request
    route = route_of(model)
    if route is None:
        raise ProviderInvalidModel(f"there is no model {model!r}, which transcribes", param="model")
    before = request.serving.describe
    request.serving.tell(lambda: f"transcribing model={model}")
    try:
        texts = {sound: await _ask(route, sound, request) for sound in found}
    finally:
        request.serving.tell(before)
    messages, kinds = with_texts(messages, texts)
    fields = {**request.fields, "messages": Raw(encode(messages))}
    return replace(request, fields=fields, changes={**request.changes, **kinds})


async def _ask(route: Route, sound: Sound, of: ChatRequest) -> str:
    tier = of.serving.tier if of.serving.tier != "auto" else None
    sent = await in_thread_if_large(len(sound.data), _form, route.model.upstream_name, sound)
    return transcript(await whole(Asked(route, "audio", of.caller, tier, hears=True), sent, MAX_ANSWER))


def _form(model: str, sound: Sound) -> Forward:
    boundary = secrets.token_hex(16)
    fields = {"model": model, "response_format": "json"}
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    named = f'name="file"; filename="sound.{sound.format}"'
    parts.append(f"Content-Disposition: form-data; {named}\r\nContent-Type: application/octet-stream\r\n\r\n")
    head = f"--{boundary}\r\n".join(("", *parts)).encode()
    body = b"%b%b\r\n--%b--\r\n" % (head, sound.content(), boundary.encode())
    return Forward("POST", "/v1/audio/transcriptions", f"multipart/form-data; boundary={boundary}", body)

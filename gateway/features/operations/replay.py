"""Parses a recorded answer as another tool-call format."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.answer.errors import EngineError
from gateway.answer.normalize import Answer
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.wire.chat import ChatRequest, decode, encode
from normalizers import registry


def formats() -> list[str]:
    """Names of the formats, in the order of their table."""
    return registry.names()


def replayed(request: bytes, raw: Sequence[bytes], format: str, stream: bool, reasoning_open: bool) -> list[bytes]:
    """The payloads of a stream, or the one body, that the client would have received in this format.

    request: the recorded fields of the client's, as a JSON object. raw: the engine's payloads, or its one body.
    Raises ProviderInvalidRequest for an unknown format.
    """
    try:
        spec = registry.get(format)
    except registry.UnknownFormat as error:
        raise ProviderInvalidRequest(str(error), param="as") from None
    # The log drops long prompts; the format doesn't depend on them.
    fields = {"messages": [{"role": "user", "content": ""}], **decode(request)}
    answer = Answer(ChatRequest.parse(encode(fields)), spec, reasoning_open=reasoning_open)
    clean: list[bytes] = []
    try:
        if stream:
            answer.feed([*raw], clean)
            clean += answer.finish(done=True)
        elif raw:
            clean.append(answer.whole(raw[0]))
    except (EngineError, GatewayError):
        # The recorded answer ends with the engine's failure.
        clean += answer.remaining()
    return clean

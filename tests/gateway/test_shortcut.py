"""Which bytes of an engine go straight to the client, and which are left to be pulled."""

from __future__ import annotations

import json

import pytest

from gateway.answer.errors import EngineError
from gateway.answer.normalize import Answer
from gateway.backends.base import DirectReply
from gateway.core.shortcut import Shortcut
from gateway.wire.chat import ChatRequest
from normalizers import registry
from tests.gateway.double import chunk

REQUEST = ChatRequest.parse(b'{"messages": [{"role": "user", "content": "Hi"}], "stream": true}')
EVENT = b"data: " + json.dumps(chunk("Hello")).encode() + b"\n\n"


class Reading(DirectReply):
    """Stands between two events, or within one."""

    def __init__(self, between: bool) -> None:
        self.between_events = between


class Client:
    """What a client is sent; one that lags takes no more."""

    def __init__(self, ready: bool = True) -> None:
        self.got: list[bytes] = []
        self.ready = ready

    def push(self, data: bytes) -> None:
        self.got.append(data)


def shortcut(client: Client, *, between: bool = True, name: str = "native_json") -> Shortcut:
    return Shortcut(Reading(between), Answer(REQUEST, registry.get(name)), client)


def test_a_whole_event_goes_to_a_client_that_keeps_up() -> None:
    client = Client()
    taking = shortcut(client)
    assert [taking.offer(EVENT) for _ in range(3)] == [True, True, True]
    assert b"".join(client.got).count(b'"Hello"') == 3


@pytest.mark.parametrize(
    ("between", "ready", "data"),
    [
        pytest.param(False, True, EVENT, id="the rest of an event is still to come"),
        pytest.param(True, False, EVENT, id="the client lags"),
        pytest.param(True, True, EVENT[:-1], id="its end is missing"),
        pytest.param(True, True, EVENT + EVENT, id="two events"),
        pytest.param(True, True, b"data: [DONE]\n\n", id="the end of the stream"),
        pytest.param(True, True, b": keep-alive\n\n", id="a comment"),
    ],
)
def test_all_else_is_left_to_be_pulled(between: bool, ready: bool, data: bytes) -> None:
    client = Client(ready)
    assert not shortcut(client, between=between).offer(data)
    assert client.got == []


def test_an_error_of_the_engine_is_raised() -> None:
    client = Client()
    taking = shortcut(client)
    assert taking.offer(EVENT)
    with pytest.raises(EngineError):
        taking.offer(b'data: {"error": {"message": "out of memory"}}\n\n')
    assert len(client.got) == 1

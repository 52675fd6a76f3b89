"""Ctrl-C in a conversation on a terminal: it cancels the answer wherever it comes, and the conversation goes on."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.features.ctx import terminal
from gateway.features.ctx.client import OK, receive
from gateway.features.ctx.objects import ObjectName, Triple
from tests.patience import PATIENCE

Frame = dict[str, Any]
NAME = "model/acme/m"


class Gateway:
    """The other side: it answers `slow` only once it is cancelled, and all else at once, until the client ends."""

    def __init__(self, connection: socket.socket) -> None:
        self.frames: list[Frame] = []
        self._connection = connection
        self._reads = connection.makefile("rb")

    def say(self, **event: Any) -> None:
        self._connection.sendall(json.dumps(event).encode() + b"\n")

    def serve(self) -> None:
        with self._reads, contextlib.suppress(ConnectionError):
            self._serve()

    def _serve(self) -> None:
        active: str | None = None
        for line in self._reads:
            frame = json.loads(line)
            self.frames.append(frame)
            match frame["op"]:
                case "ping":
                    self.say(type="pong")
                case "send":
                    self.say(type="start", run="r", client_id=frame["id"])
                    self.say(type="delta", run="r", text=f"about {frame['input']}")
                    if frame["input"] == "slow":
                        active = frame["id"]
                    else:
                        self.say(type="done", run="r", status="ok")
                case "cancel" if frame["id"] == active:
                    self.say(type="done", run="r", status="cancelled")
                case "cancel":
                    self.say(type="error", code="ENOENT", message="no such run is active")


class Says:
    """Standard output. press: called once for the first piece that has the words."""

    def __init__(self, words: str, press: Callable[[], None]) -> None:
        self.text = ""
        self._words, self._press = words, press

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        pass

    def write(self, text: str) -> int:
        self.text += text
        if self._words and self._words in text:
            self._words = ""
            self._press()
        return len(text)


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """At the socket of `model/acme/m`, below `tmp_path`."""
    ours, theirs = socket.socketpair()
    sock = Triple.of(tmp_path, ObjectName.parse(NAME)).sock
    sock.parent.mkdir(parents=True)
    sock.touch()
    monkeypatch.setattr(terminal, "connect", {str(sock): ours}.__getitem__)
    with ours, theirs:
        made = Gateway(theirs)
        thread = threading.Thread(target=made.serve)
        thread.start()
        yield made
        ours.close()
        thread.join(PATIENCE)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("when", ["before it is sent", "while it is shown", "when it is done"])
def test_an_interrupt_cancels_the_answer_and_no_more(
    when: str, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = "quick" if when == "when it is done" else "slow"
    asked = iter([first, "second", "third"])

    def reads(_: str) -> str:
        try:
            return next(asked)
        except StopIteration:
            raise EOFError from None

    def sends(connection: socket.socket, data: bytes) -> bool:
        if when == "before it is sent" and b'"send"' in data and b"slow" in data:
            press()
        connection.sendall(data)
        return True

    out = Says({"while it is shown": "about slow", "when it is done": "about quick"}.get(when, ""), press)
    monkeypatch.setattr("builtins.input", reads)
    monkeypatch.setattr(terminal, "send", sends)
    monkeypatch.setattr(sys, "stdout", out)
    before = signal.getsignal(signal.SIGINT)
    assert terminal.converse(str(tmp_path), NAME) == OK
    assert signal.getsignal(signal.SIGINT) is before
    assert [frame["input"] for frame in gateway.frames if frame["op"] == "send"] == [first, "second", "third"]
    assert [frame["op"] for frame in gateway.frames].count("cancel") == 1
    assert [text for text in (first, "second", "third") if f"about {text}" not in out.text] == []


def test_an_interrupt_while_nothing_comes(gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter(["slow", "second"])
    monkeypatch.setattr("builtins.input", lambda _: next(asked, None) or leave())
    waits = receive
    pressed = False

    def receives(connection: socket.socket) -> bytes:
        nonlocal pressed
        data = waits(connection)
        if not pressed and b"about slow" in data:
            pressed = True
            threading.Timer(0, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        return data

    main = threading.get_ident()
    monkeypatch.setattr(terminal, "receive", receives)
    assert terminal.converse(str(tmp_path), NAME) == OK
    assert [frame["op"] for frame in gateway.frames] == ["send", "cancel", "ping", "send"]


@pytest.mark.usefixtures("gateway")
def test_a_second_interrupt_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "slow")
    monkeypatch.setattr(sys, "stdout", Says("about slow", twice))
    with pytest.raises(KeyboardInterrupt):
        terminal.converse(str(tmp_path), NAME)


def twice() -> None:
    press()
    press()


def leave() -> str:
    raise EOFError

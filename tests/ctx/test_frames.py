"""Hostile frames: never a crash, always the named errno."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.features.ctx.errors import code
from gateway.features.ctx.frames import MAX_FRAME, Cancel, Ping, Resume, Send, parse
from gateway.features.ctx.jsonl import TOO_LONG, LineReader
from gateway.features.ctx.runner_connection import Call
from tests.ctx.kept import keeping
from tests.patience import PATIENCE


def outcome(frame: bytes | Any) -> str:
    """The kind of request, or the errno."""
    try:
        return type(parse(frame)).__name__
    except GatewayError as error:
        return code(error)


DEEP = b"[" * 100_000 + b"]" * 100_000

FRAMES: dict[bytes, str] = {
    b'{"op":"send","id":"msg-1","session":"default","cwd":"/work","input":"hello"}': "Send",
    b'{"op":"send","id":"msg-1","input":"hello"}': "Send",
    b'{"op":"resume","session":"default","after":"event-123"}': "Resume",
    b'{"op":"resume"}': "Resume",
    b'{"op":"cancel","id":"run-1"}': "Cancel",
    b'{"op":"ping"}': "Ping",
    b' {"op" : "ping"}\r': "Ping",
    b'{"op":"ping","what":[1,{"a":null}]}': "Ping",
    b'{"op":"ping","what":"\\u0000"}': "Ping",
    b'{"op":"ping","what":' + DEEP + b"}": "EINVAL",
    DEEP: "EINVAL",
    b'{"op":"ping","op":"zap"}': "EINVAL",
    b"": "EINVAL",
    b" ": "EINVAL",
    b"\0": "EINVAL",
    b'{"op":"ping"}\0': "EINVAL",
    b'{"op":"ping"}{"op":"ping"}': "EINVAL",
    b'{"op":"ping"': "EINVAL",
    b'{"op":"ping","what":"\xff"}': "EINVAL",
    b'{"op":"ping","what":"\xed\xa0\x80"}': "EINVAL",
    b'{"op":"ping","what":"\\udc80"}': "EINVAL",
    b'{"op":"send","id":"a","input":"\\udc80"}': "EINVAL",
    b'{"op":"send","id":"a","input":"\xff"}': "EINVAL",
    b'{"op":"send","id":"a","input":"a\\u0000b"}': "EINVAL",
    b'{"op":"send","id":"a","input":""}': "EINVAL",
    b'{"op":"send","id":"a","input":" \\n"}': "EINVAL",
    b'{"op":"send","id":"a"}': "EINVAL",
    b'{"op":"send","id":"a","input":null}': "EINVAL",
    b'{"op":"send","id":"a","input":["hello"]}': "EINVAL",
    b'{"op":"send","id":null,"input":"hello"}': "EINVAL",
    b'{"op":"send","id":"","input":"hello"}': "EINVAL",
    b'{"op":"send","id":"../x","input":"hello"}': "EINVAL",
    b'{"op":"send","id":"a b","input":"hello"}': "EINVAL",
    b'{"op":"send","id":"a","session":"a/b","input":"hello"}': "EINVAL",
    b'{"op":"send","id":"a","session":null,"input":"hello"}': "EINVAL",
    b'{"op":"send","id":"a","scope":"public","input":"hello"}': "EINVAL",
    b'{"op":"send","id":"a","cwd":"work","input":"hello"}': "EINVAL",
    b'{"op":"send","id":"a","cwd":"/a/../b","input":"hello"}': "EINVAL",
    b'{"op":"send","id":"a","cwd":"/a\\n","input":"hello"}': "EINVAL",
    b'{"op":"send","id":"a","cwd":null,"input":"hello"}': "EINVAL",
    b'{"op":"resume","after":"event 1"}': "EINVAL",
    b'{"op":"resume","after":null}': "EINVAL",
    b'{"op":"cancel"}': "EINVAL",
    b'{"op":"zap"}': "EINVAL",
    b'{"op":7}': "EINVAL",
    b'{"op":null}': "EINVAL",
    b'{"id":"a"}': "EINVAL",
    b"[]": "EINVAL",
    b"null": "EINVAL",
    b"7": "EINVAL",
    b'"ping"': "EINVAL",
    b'{"op":"exec","object":"model/debug/echo","input":"hello"}': "EINVAL",
}


@pytest.mark.parametrize(("frame", "expected"), FRAMES.items(), ids=lambda value: repr(value[:60]))
def test_frames(frame: bytes, expected: str) -> None:
    assert outcome(frame) == expected


def test_a_frame_that_is_too_long() -> None:
    assert outcome(TOO_LONG) == "EMSGSIZE"


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"1\0model/debug/echo\0echo\0r1\0/work\0tpo\0\0hello", ["hello"]),
        (b"1\0model/debug/echo\0echo\0r1\0\0tpo\0text", []),
        (b"1\0model/debug/echo\0echo\0r1\0\0tpo\0\0\0", ["", ""]),
        (b"2\0model/debug/echo\0echo\0r1\0/work\0tpo\0\0hello", "EINVAL"),
        (b"1\0model/debug/echo\0echo\0r1", "EINVAL"),
        (b"1\0model/debug/echo\0echo\0r1\0\0tpo\0\0\377", "EINVAL"),
        (b"", "EINVAL"),
    ],
)
def test_the_runner_s_calls(payload: bytes, expected: Any) -> None:
    try:
        found: Any = Call.read(payload).arguments
    except GatewayError as error:
        found = code(error)
    assert found == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
requests = st.fixed_dictionaries(
    {},
    optional={
        key: st.one_of(
            st.sampled_from(["send", "resume", "cancel", "ping", "zap", "a", "event-1", "temp", "/work", "a\0"]),
            json_values,
        )
        for key in ("op", "id", "session", "scope", "cwd", "input", "after", "unknown")
    },
)
hostile = st.one_of(
    st.binary(max_size=200),
    requests.map(lambda request: json.dumps(request).encode()),
    requests.map(lambda request: json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.tuples(requests.map(lambda request: json.dumps(request).encode()), st.integers(0, 60)).map(
        lambda cut: cut[0][: cut[1]]
    ),
    st.sampled_from([*FRAMES]),
)


@given(hostile)
def test_any_frame_is_a_request_or_einval(frame: bytes) -> None:
    found = outcome(frame)
    assert found in ("Send", "Resume", "Cancel", "Ping", "EINVAL")
    if found in ("Send", "Resume", "Cancel"):
        request = parse(frame)
        assert isinstance(request, Send | Resume | Cancel | Ping)


# Lines


@given(st.lists(st.binary(max_size=30), max_size=8), st.data())
def test_lines_are_the_same_for_any_split(pieces: list[bytes], data: st.DataObject) -> None:
    """And none that is longer than the limit is held."""
    limit = data.draw(st.integers(1, 40))
    stream = b"\n".join(piece.replace(b"\n", b"") for piece in pieces)
    whole = LineReader(limit)
    expected = [*whole.feed(stream), whole.finish()]
    split = LineReader(limit)
    found: list[Any] = []
    rest = stream
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        found += split.feed(rest[:size])
        rest = rest[size:]
    assert [*found, split.finish()] == expected
    lines = stream.split(b"\n")
    for line, came in zip(lines[:-1], expected[:-1], strict=False):
        assert came == (line if len(line) + 1 <= limit else TOO_LONG)


def test_the_limit_counts_the_newline() -> None:
    reader = LineReader(4)
    assert reader.feed(b"abc\nabcd\nab") == [b"abc", TOO_LONG]
    assert reader.feed(b"cd") == [TOO_LONG]
    assert reader.feed(b"efgh" * 1000) == []
    assert reader.feed(b"\nxyz\n") == [b"xyz"]
    assert reader.finish() is None


# On a real socket


@pytest.fixture(scope="module")
def kept(module_short: Path) -> Iterator[Path]:
    """The root of a tree that is kept beside the tests."""
    stop = threading.Event()
    ready = threading.Event()

    async def keep() -> None:
        async with keeping(module_short):
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(keep(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield module_short / "t"
    finally:
        stop.set()
        thread.join(PATIENCE)


async def answers(path: Path, pieces: list[bytes]) -> list[dict[str, Any]]:
    """What comes back for the pieces, each a write of its own, and their end."""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            writer.write_eof()
            return [json.loads(line) for line in (await reader.read()).splitlines()]
        finally:
            writer.close()
            await writer.wait_closed()


@settings(max_examples=100)
@given(st.lists(hostile, max_size=6), st.lists(st.integers(1, 400), max_size=6))
@example([b'{"op":"ping"}'] * 6, [])
@example([DEEP, b'{"op":"ping"}'], [1000, 1000])
def test_a_socket_answers_any_input(kept: Path, frames: list[bytes], cuts: list[int]) -> None:
    """Half frames and many in one read: each is answered, and the connection still works at its end."""
    stream = b"".join(frame.replace(b"\n", b"") + b"\n" for frame in frames) + b'{"op":"ping"}\n{"half'
    pieces = []
    for cut in cuts:
        pieces.append(stream[:cut])
        stream = stream[cut:]

    told = asyncio.run(answers(kept / "model/debug/echo.sock", [*filter(None, pieces), stream]))
    kinds = [frame["type"] for frame in told]
    assert "pong" in kinds
    assert told[-1] == {**told[-1], "type": "error", "code": "EINVAL"} or kinds[-1] == "done"
    known = {errno.errorcode[number] for number in errno.errorcode}
    refused = [frame["code"] for frame in told if frame["type"] == "error"]
    assert set(refused) <= known & {"EINVAL", "ENOENT", "EAGAIN"}
    expected = [outcome(frame.replace(b"\n", b"")) for frame in frames]
    assert refused.count("EINVAL") >= expected.count("EINVAL") + 1
    assert kinds.count("pong") == expected.count("Ping") + 1


async def test_a_megabyte_and_one(kept: Path) -> None:
    padding = b" " * (MAX_FRAME - len(b'{"op":"ping"}\n'))
    fits = b'{"op":"ping"' + padding + b"}\n"
    assert len(fits) == MAX_FRAME
    told = await answers(
        kept / "model/debug/echo.sock",
        [fits, b'{"op":"ping"' + padding + b" }\n", b"x" * (5 * MAX_FRAME), b"\n" + fits],
    )
    assert [frame.get("code", frame["type"]) for frame in told] == ["pong", "EMSGSIZE", "EMSGSIZE", "pong"]


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff",
        b'{"op":"ping"}',
        DEEP,
        b"h-1",
        b"h99999999999",
        b"c0",
        b"h2\n1x",
        b"h34\n1\0model/../x\0x\0r1\0/work\0ooo\0\0hello",
        b"",
    ],
    ids=lambda frame: repr(frame[:30]),
)
async def test_the_runner_s_socket_refuses_what_isn_t_the_runner_s(frame: bytes, kept: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_unix_connection(kept / ".ctxgate/exec.sock")
        writer.write(frame + b"\n")
        lines = (await reader.read()).splitlines()
        writer.close()
        await writer.wait_closed()
    assert json.loads(lines[1])["code"] in ("EINVAL", "ENOENT")
    assert json.loads(lines[2]) == {"type": "done", "run": "r1", "status": "error"}
    assert (lines[3], lines[4]) in ((b"x1", b"2"), (b"x1", b"1"))

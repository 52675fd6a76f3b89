"""Sessions at a socket: kept, shared, temporary; asked once; resumed, cancelled and left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gateway.features.ctx.connection import MAX_FOLLOWING
from gateway.features.ctx.live import LiveTree
from gateway.features.ctx.settings import Ctx, CtxModel
from gateway.features.ctx.sync import sync
from gateway.features.ctx.tree import MANIFEST
from gateway.services import Services
from normalizers import registry
from tests.ctx.engine import Words
from tests.ctx.kept import eventually, keeping
from tests.ctx.served import text, types
from tests.gateway.double import Double, Exchange, chunk, streams
from tests.patience import PATIENCE
from tests.store.postgresql import Server, start


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Server]:
    with start() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> str | None:
    """Where the sessions are kept; None: where they are if nobody says otherwise."""
    if request.param == "sqlite":
        return None
    server: Server = request.getfixturevalue("postgresql")
    return server.database()


async def test_a_session_outlives_its_client_and_the_gateway(store: str | None, short: Path) -> None:
    engine = Words()
    async with Double(engine.script).serve() as double:
        async with keeping(short, double, store=store) as kept:
            async with kept.connect() as client:
                await client.ask(op="send", id="m1", session="s", cwd="/work", input="go")
                seen = [await client.frame()]
                engine.permits.release()
                seen.append(await client.frame())
            # Nobody listens now, and the engine goes on.
            assert not double.requests[0].gone.done()
            async with kept.connect() as client:
                await client.ask(op="resume", session="s", after=seen[-1]["id"])
                for _ in range(199):
                    engine.permits.release()
                rest = await client.until()
            assert text(seen + rest) == "".join(f"word{number} " for number in range(200))
            assert rest[-1]["status"] == "ok"
        async with keeping(short, double, store=store) as kept, kept.connect() as client:
            await client.ask(op="resume", session="s")
            assert await client.until() == seen + rest
            await client.ask(op="send", id="m1", session="s", cwd="/work", input="go")
            assert await client.frame() == rest[-1]
            await client.ask(op="send", id="m2", session="s", input="more")
            for _ in range(200):
                engine.permits.release()
            again = await client.until()
            assert again[0]["id"] == f"event-{len(seen + rest) + 1}"
    assert [message["role"] for message in engine.asked[1]["messages"]] == ["user", "assistant", "user"]
    assert len(engine.asked) == 2


async def test_one_id_is_answered_once(short: Path) -> None:
    """However many clients send it at once."""
    engine = Words()
    async with Double(engine.script).serve() as double, keeping(short, double) as kept:
        clients = [await kept.connect().__aenter__() for _ in range(20)]
        for client in clients:
            await client.ask(op="send", id="m1", input="go")
        first = [await client.frame() for client in clients]
        # Each client learns of the one run; only the one that started it gets more.
        assert all(frame == first[0] for frame in first)
        await double.asked()
        for client in clients:
            await client.ask(op="cancel", id=first[0]["run"])
        ends = [(await client.until("done"))[-1] for client in clients[:1]]
        assert ends[0]["status"] == "cancelled"
        for client in clients:
            await client.leave()
    assert len(engine.asked) == 1


@pytest.mark.parametrize("change", [{"input": "other"}, {"cwd": "/elsewhere"}])
async def test_an_id_with_another_payload(change: dict[str, Any], short: Path) -> None:
    async with keeping(short) as kept, kept.connect("debug/echo") as client:
        send = {"op": "send", "id": "m1", "session": "s", "cwd": "/work", "input": "one"}
        await client.ask(**send)
        await client.until()
        assert await client.refused(**{**send, **change}) == "EINVAL"
        # Another session, or a shared one of that name, knows nothing of it.
        for other in ({"session": "t"}, {"scope": "shared"}):
            await client.ask(**{**send, **change, **other})
            assert text(await client.until()) == change.get("input", "one")


async def test_a_session_answers_one_message_at_a_time(short: Path) -> None:
    engine = Words()
    async with Double(engine.script).serve() as double, keeping(short, double) as kept, kept.connect() as client:
        await client.ask(op="send", id="m1", input="go")
        run = (await client.frame())["run"]
        await double.asked()  # else the cancel may come before it
        await client.ask(op="send", id="m2", input="and on")
        refused = await client.frame()
        assert (refused["code"], refused["client_id"]) == ("EAGAIN", "m2")
        assert "run" not in refused
        await client.ask(op="cancel", id="m1")
        assert [(frame["type"], frame["run"]) for frame in await client.until()][-1] == ("done", run)
        await client.ask(op="send", id="m2", input="and on")
        assert (await client.frame())["type"] == "start"
        await double.asked(2)
        # What was cancelled is no part of the conversation.
        assert [message["content"] for message in engine.asked[-1]["messages"]] == ["and on"]


async def test_cancelled_from_another_connection(short: Path) -> None:
    engine = Words()
    async with (
        Double(engine.script).serve() as double,
        keeping(short, double) as kept,
        kept.connect() as one,
        kept.connect() as other,
    ):
        await one.ask(op="send", id="m1", input="go")
        run = (await one.frame())["run"]
        await double.asked()
        await other.ask(op="cancel", id=run)
        done = await other.frame()
        assert (done["type"], done["status"], done["run"]) == ("done", "cancelled", run)
        assert (await one.until())[-1] == done
        async with asyncio.timeout(PATIENCE):
            await double.requests[0].gone
        assert await other.refused(op="cancel", id=run) == "ENOENT"
        await other.ask(op="send", id="m1", input="go")
        assert await other.frame() == done


async def test_shared_and_private_sessions_of_one_name(short: Path) -> None:
    async with keeping(short) as kept, kept.connect("debug/echo") as client:
        for scope in ("private", "shared"):
            await client.ask(op="send", id="m1", session="s", scope=scope, input=scope)
            assert text(await client.until()) == scope
        for asked, found in (({}, "private"), ({"scope": "shared"}, "shared"), ({"scope": "private"}, "private")):
            await client.ask(op="resume", session="s", **asked)
            assert text(await client.until()) == found
        assert await client.refused(op="resume", session="t") == "ENOENT"
        assert await client.refused(op="resume", session="s", scope="temp") == "ENOENT"
        for after in ("event-0", "event-6", "event-x", "event-007", "e"):
            assert await client.refused(op="resume", session="s", after=after) == "ENOENT"


async def test_a_temporary_session(short: Path) -> None:
    """It remembers, on its own connection alone."""
    async with keeping(short) as kept:
        async with kept.connect("debug/echo") as client:
            await client.ask(op="send", id="m1", session="s", scope="temp", input="one")
            first = await client.until()
            assert types(first) == ["start", "delta", "message", "usage", "done"]
            assert [frame["id"] for frame in first] == [f"event-{number}" for number in range(1, 6)]
            await client.ask(op="send", id="m1", session="s", scope="temp", input="one")
            assert await client.frame() == first[-1]
            assert await client.refused(op="send", id="m1", session="s", scope="temp", input="two") == "EINVAL"
            await client.ask(op="send", id="m2", session="s", scope="temp", input="two")
            again = await client.until()
            assert [frame["id"] for frame in again] == [f"event-{number}" for number in range(6, 11)]
            # The echo counts the words of the whole conversation.
            assert (first[-2]["input_tokens"], again[-2]["input_tokens"]) == (1, 3)
            assert await client.refused(op="resume", session="s") == "ENOENT"
        async with kept.connect("debug/echo") as client:
            await client.ask(op="send", id="m1", session="s", scope="temp", input="two")
            assert (await client.until())[-2]["input_tokens"] == 1


async def test_who_leaves_a_temporary_session_ends_it(short: Path) -> None:
    engine = Words()
    async with Double(engine.script).serve() as double, keeping(short, double) as kept:
        async with kept.connect() as client:
            await client.ask(op="send", id="m1", scope="temp", input="go")
            await client.frame()
            await client.ask(op="send", id="m2", session="other", scope="temp", input="go")
            await client.frame()
            await double.asked(2)
            await client.ask(op="cancel", id="m2")
            assert (await client.frame())["status"] == "cancelled"
            assert await client.refused(op="cancel", id="m2") == "ENOENT"
        async with asyncio.timeout(PATIENCE):
            await double.requests[0].gone
            await double.requests[1].gone


async def test_the_engine_waits_for_who_reads_slowly_in_a_temporary_session(short: Path) -> None:
    sent = 0
    size = 16_000

    async def flood(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.start()
        for _ in range(4000):
            if exchange.gone.done():
                return
            await exchange.event(chunk("x" * size))
            sent += size

    async with Double(flood).serve() as double, keeping(short, double) as kept, kept.connect() as client:
        transport = cast(asyncio.Transport, client.writer.transport)
        await client.ask(op="send", id="m1", scope="temp", input="go")
        await client.frame()
        transport.pause_reading()
        exchange = await double.asked()
        seen = -1

        def stalled() -> bool:
            nonlocal seen
            before, seen = seen, sent
            return before == sent and not exchange.connection.writable.is_set()

        await eventually(stalled)
        # The answer is four times as long as the kernel's socket buffers.
        assert 0 < sent < 16_000_000
        transport.resume_reading()
        told = await client.until()
        # In the end it is too long for a message.
        assert [frame.get("code", frame["type"]) for frame in told[-2:]] == ["EMSGSIZE", "done"]
        assert 900_000 < len(text(told)) < 2**20


async def test_a_client_that_has_said_its_last_still_listens(short: Path) -> None:
    async with keeping(short) as kept, kept.connect("debug/echo") as client:
        client.writer.write(b'{"op":"ping"}\n{"op":"send","id":"m1","input":"hello"}')
        client.writer.write_eof()
        frames = [json.loads(line) for line in (await client.rest()).splitlines()]
    assert types(frames) == ["pong", "start", "delta", "message", "usage", "done"]


async def test_calls_are_part_of_the_conversation(short: Path) -> None:
    call = {"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    script = streams(chunk("I look.", tool_calls=[call]), chunk(reason="tool_calls"))
    # The engine brings its own tools.
    brings = registry.define({"like": "native_json", "unknown_tools": "forward"})
    async with (
        Double(script).serve() as double,
        keeping(short, double, custom_format=brings) as kept,
        kept.connect() as client,
    ):
        await client.ask(op="send", id="m1", input="look")
        told = await client.until()
        (event,) = [frame for frame in told if frame["type"] == "tool_call"]
        assert event == {**event, "id": "event-4", "name": "f", "arguments": {"a": 1}}
        await client.ask(op="send", id="m2", input="and?")
        await client.until()
        answer = double.requests[1].json["messages"][1]
        assert (answer["content"], answer["tool_calls"][0]["id"]) == ("I look.", "event-4")
        assert json.loads(answer["tool_calls"][0]["function"]["arguments"]) == {"a": 1}


async def test_a_connection_follows_so_much_and_no_more(short: Path) -> None:
    async with Double(Words().script).serve() as double, keeping(short, double) as kept, kept.connect() as client:
        for number in range(MAX_FOLLOWING):
            await client.ask(op="send", id="m", session=f"s{number}", input="go")
            frame = await client.frame()
            assert frame["type"] == "start", frame
        assert await client.refused(op="send", id="m", session="more", input="go") == "EAGAIN"
        await client.ask(op="ping")
        assert (await client.frame())["type"] == "pong"


async def test_a_store_that_can_t_be_opened(short: Path) -> None:
    """Is told; what needs none still works."""
    async with keeping(short, store="sqlite:////proc/nowhere/x.db") as kept, kept.connect("debug/echo") as client:
        assert await client.refused(op="send", id="m1", input="hello") == "EHOSTDOWN"
        await client.ask(op="send", id="m1", scope="temp", input="hello")
        assert (await client.until())[-1]["status"] == "ok"


async def test_a_second_gateway_takes_the_tree_over_once_the_first_has_ended(
    short: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a quick restart, when the old one still finishes an answer."""
    async with keeping(short) as kept:
        second = LiveTree(Services(kept.gateway))
        serving = asyncio.create_task(second.run())
        await eventually(lambda: f"another gateway serves {kept.root}" in caplog.text)
        async with kept.connect("debug/echo") as client:
            await client.ask(op="ping")
            assert await client.frame() == {"type": "pong"}
        kept.tree.stop.set()
        async with asyncio.timeout(PATIENCE):
            await second.ready.wait()
        async with kept.connect("debug/echo") as client:
            await client.ask(op="ping")
            assert await client.frame() == {"type": "pong"}
        second.stop.set()
        await serving
    assert caplog.text.count("another gateway serves") == 1


async def test_what_can_t_be_written_is_tried_again(short: Path, caplog: pytest.LogCaptureFixture) -> None:
    (short / "t").write_text("a file stands where the tree belongs")
    async with keeping(short, waits=False) as kept:
        await eventually(lambda: "/ctx: " in caplog.text)
        (short / "t").unlink()
        async with asyncio.timeout(PATIENCE):
            await kept.tree.ready.wait()
        assert (kept.root / "model/debug/echo.sock").is_socket()


async def test_a_change_that_can_t_be_written_is_tried_again(short: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with keeping(short, Double()) as kept:
        manifest, config = kept.root / MANIFEST, kept.gateway.config
        written = manifest.read_bytes()
        manifest.unlink()
        manifest.mkdir()
        kept.gateway.config = replace(config, models={"echo": config.models["echo"]}, sections={})
        await eventually(lambda: "/ctx: " in caplog.text)
        manifest.rmdir()
        manifest.write_bytes(written)
        await eventually(lambda: not (kept.root / "model/acme/m").exists())


async def test_status_and_log_are_live(short: Path) -> None:
    engine = Words()
    async with Double(engine.script).serve() as double, keeping(short, double) as kept:
        control = kept.root / "model/acme/m.d"

        def status() -> str:
            return (control / "status").read_text().strip()

        assert status() == "ready"
        async with kept.connect() as client:
            await client.ask(op="send", id="m1", session="s", input="a secret thing")
            run = (await client.frame())["run"]
            await eventually(lambda: status() == "busy")
            await client.ask(op="cancel", id=run)
            await client.until()
        await eventually(lambda: status() == "ready" and (control / "log").stat().st_size > 0)
        (entry,) = [json.loads(line) for line in (control / "log").read_text().splitlines()]
        assert entry == {
            **entry, "type": "model.call", "object": "model/acme/m", "session": "s", "run": run, "status": "cancelled"
        }  # fmt: skip
        assert "secret" not in (control / "log").read_text()
    assert (control / "status").read_text() == "offline\n"


async def test_a_reload_changes_the_tree(short: Path) -> None:
    """Services has another configuration then; who is connected stays connected."""
    async with Double(streams(chunk("Hello"))).serve() as double, keeping(short, double) as kept:
        async with kept.connect("debug/echo") as client:
            config = kept.gateway.config
            without = {name: model for name, model in config.models.items() if name != "m"}
            ctx = replace(config.section(Ctx), aliases={"code": "echo"})
            kept.gateway.config = replace(config, models=without, sections={"ctx": ctx})
            await eventually(lambda: (kept.root / "model/code").is_symlink())
            await eventually(lambda: not (kept.root / "model/acme").exists())
            await client.ask(op="ping")
            assert await client.frame() == {"type": "pong"}
        kept.gateway.config = config
        await eventually(lambda: (kept.root / "model/acme/m.sock").is_socket())
        assert not (kept.root / "model/code").is_symlink()
        async with kept.connect() as client:
            await client.ask(op="send", id="m1", input="hello")
            assert text(await client.until()) == "Hello"


async def test_an_object_of_one_s_own_gets_its_socket(short: Path) -> None:
    """At the next sync, whoever runs it."""
    async with keeping(short) as kept:
        control = kept.root / "model/debug/mine.d"
        control.mkdir()
        for file, said in (("id", "debug/echo"), ("driver", "debug"), ("session", "socket"), ("status", "")):
            (control / file).write_text(said)
        (kept.root / "model/debug/mine").write_text((kept.root / "model/debug/echo").read_text())
        await asyncio.to_thread(sync, kept.root, kept.gateway.config)
        await eventually(lambda: (kept.root / "model/debug/mine.sock").is_socket())
        async with kept.connect("debug/mine") as client:
            await client.ask(op="send", id="m1", input="hello")
            told = await client.until()
        assert (told[0]["model"], text(told)) == ("debug/mine", "hello")
        await eventually(lambda: (control / "status").read_text() == "ready\n")


async def test_an_object_without_sessions_has_no_socket(short: Path) -> None:
    """One that only reports errors is bad ABI."""
    object = CtxModel(object="acme/m", session="none")
    async with Double(streams(chunk("Hello"))).serve() as double, keeping(short, double, object=object) as kept:
        assert not (kept.root / "model/acme/m.sock").exists()
        assert (kept.root / "model/acme/m.d/session").read_text() == "none\n"
        assert "session" not in (kept.root / "model/acme/m.d/cap").read_text().split()
        assert (await kept.execute("acme/m", "hello"))[1] == 0


def test_a_log_stays_short(tmp_path: Path) -> None:
    from gateway.features.ctx.callog import MAX_LOG, CallLog
    from gateway.features.ctx.objects import ObjectName, Triple

    triple = Triple.of(tmp_path, ObjectName.parse("model/acme/m"))
    triple.control.mkdir(parents=True)
    (tmp_path / ".ctxgate").mkdir()
    (triple.control / "log").touch()
    log = CallLog()
    for number in range(3000):
        log.add(triple, None, f"r{number}", "ok")
        if number % 10 == 0:
            log.flush(tmp_path)
    log.flush(tmp_path)
    lines = (triple.control / "log").read_text().splitlines()
    assert (triple.control / "log").stat().st_size < MAX_LOG + 4096
    assert [json.loads(line)["run"] for line in lines] == [f"r{number}" for number in range(3000 - len(lines), 3000)]

"""Files and batches through OpenAI's own client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, BadRequestError, ConflictError, NotFoundError

from gateway.features.batches.batch_store import BatchStore
from gateway.features.batches.objects import WINDOW_SECONDS, Fault, Line, LineReader
from gateway.server.keys import FILE, KeyFile
from tests.gateway.double import Exchange, answers, completion, endless
from tests.patience import PATIENCE
from tests.support.apis import real as real  # a fixture
from tests.support.batches import ENDPOINT, chats, ended, gateway, line, of, read, start


async def test_a_batch(tmp_path: Path) -> None:
    texts = [f"number {number}" for number in range(100)]
    async with gateway(tmp_path) as (url, _), of(url) as client:
        batch = await start(client, chats(*texts), metadata={"night": "1"})
        assert (batch.status, batch.metadata, batch.object) == ("validating", {"night": "1"}, "batch")
        batch = await ended(client, batch.id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 100, "completed": 100, "failed": 0}
        assert batch.error_file_id is None
        assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
        lines = await read(client, batch.output_file_id)
        assert [each["custom_id"] for each in lines] == texts
        assert len({each["id"] for each in lines}) == 100
        for each in lines:
            assert (each["error"], each["response"]["status_code"]) == (None, 200)
            assert each["response"]["body"]["choices"][0]["message"]["content"] == each["custom_id"]
    assert not (tmp_path / "batches.open").exists()


async def test_each_api(real: str) -> None:
    """With the real engine: what a line gets is what the same request gets over HTTP."""
    bodies: dict[str, dict[str, Any]] = {
        ENDPOINT: {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}]},
        "/v1/completions": {"model": "tiny", "prompt": "Hello", "max_tokens": 4, "temperature": 0},
        "/v1/embeddings": {"model": "vectors", "input": "Hello"},
        "/v1/responses": {"model": "tiny", "input": "Hello!", "store": False},
    }
    async with of(real) as client, httpx.AsyncClient(base_url=real, timeout=PATIENCE) as http:
        for endpoint, body in bodies.items():
            batch = await ended(client, (await start(client, [line("a", endpoint, **body)], endpoint)).id)
            (output,) = await read(client, batch.output_file_id)
            expected = (await http.post(endpoint, json=body)).json()
            for answer in (expected, output["response"]["body"]):
                for name in ("id", "created", "created_at", "completed_at", "system_fingerprint", "timings", "usage"):
                    answer.pop(name, None)
                for item in answer.get("output", ()):
                    item.pop("id")
                for name in ("service_tier", "ctxgate"):
                    answer.pop(name, None)
            assert output["response"]["body"] == expected


async def test_requests_run_as_flex(tmp_path: Path) -> None:
    async with gateway(tmp_path, answers(completion("Yes."))) as (url, engine), of(url) as client:
        lines = [line("a", model="m", messages=[{"role": "user", "content": "Hi"}], service_tier="priority")]
        await ended(client, (await start(client, lines)).id)
        assert (await engine.asked(1)).json.get("service_tier", "flex") == "flex"


async def test_errors_have_a_file_of_their_own(tmp_path: Path) -> None:
    lines = [*chats("good"), line("bad", model="nobody", messages=[{"role": "user", "content": "Hi"}]), *chats("fine")]
    async with gateway(tmp_path) as (url, _), of(url) as client:
        batch = await ended(client, (await start(client, lines)).id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}
        assert [each["custom_id"] for each in await read(client, batch.output_file_id)] == ["good", "fine"]
        (error,) = await read(client, batch.error_file_id)
        assert (error["custom_id"], error["response"]["status_code"], error["error"]) == ("bad", 404, None)
        assert error["response"]["body"]["error"]["code"] == "model_not_found"


async def test_a_failure_that_may_pass_is_asked_again(tmp_path: Path) -> None:
    busy = answers({"error": {"message": "busy"}}, 503)
    async with gateway(tmp_path, busy, answers(completion("Now."))) as (url, _), of(url) as client:
        batch = await ended(client, (await start(client, chats("a", model="m"))).id)
        (output,) = await read(client, batch.output_file_id)
        assert output["response"]["body"]["choices"][0]["message"]["content"] == "Now."


async def test_a_start_goes_on_by_itself(tmp_path: Path) -> None:
    """With the batch that is still open when others have ended."""
    async with gateway(tmp_path, endless) as (url, engine), of(url) as client:
        batch = await start(client, chats("a", model="m"))
        await engine.asked()
        assert (await ended(client, (await start(client, chats("b"))).id)).status == "completed"
    async with gateway(tmp_path, answers(completion("On."))) as (url, engine), of(url) as client:
        await engine.asked()
        assert (await ended(client, batch.id)).status == "completed"


@pytest.mark.parametrize(
    ("lines", "code", "place"),
    [
        ([], "empty_file", None),
        ([b"{"], "invalid_json_line", 1),
        ([b'{"custom_id": "a"}'], "invalid_json_line", 1),
        ([*chats("a"), b"", *chats("a")], "duplicate_custom_id", 3),
        ([*chats("a", "b", "c", "d")], "too_many_requests", 4),
        ([line("a", "/v1/embeddings", input="x")], "invalid_url", 1),
        ([line("a", stream=True)], "invalid_request", 1),
        ([chats("a")[0].replace(b"POST", b"GET")], "invalid_method", 1),
        ([line("")], "invalid_custom_id", 1),
    ],
)
async def test_input_that_cant_be_used(tmp_path: Path, lines: list[bytes], code: str, place: int | None) -> None:
    async with gateway(tmp_path, max_lines=3) as (url, _), of(url) as client:
        batch = await ended(client, (await start(client, lines)).id)
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [(fault.code, fault.line) for fault in batch.errors.data] == [(code, place)]
        assert batch.output_file_id is batch.error_file_id is None


async def test_cancelling(tmp_path: Path) -> None:
    """The engine notices; what was answered is kept, the rest says why it has no answer."""
    async with gateway(tmp_path, endless, at_a_time=1) as (url, engine), of(url) as client:
        lines = [*chats("a", "b"), *chats("c", "d", model="m")]
        batch = await start(client, lines)
        exchange = await engine.asked()
        cancelled = await client.batches.cancel(batch.id)
        assert cancelled.status == "cancelling"
        await exchange.gone
        batch = await ended(client, batch.id)
        assert (batch.status, batch.cancelled_at is not None) == ("cancelled", True)
        assert [each["custom_id"] for each in await read(client, batch.output_file_id)] == ["a", "b"]
        rest = await read(client, batch.error_file_id)
        assert [(each["custom_id"], each["error"]["code"]) for each in rest] == [
            ("c", "batch_cancelled"), ("d", "batch_cancelled"),
        ]  # fmt: skip
        assert (await client.batches.cancel(batch.id)).status == "cancelled"
        done = await ended(client, (await start(client, chats("a"))).id)
        with pytest.raises(ConflictError):
            await client.batches.cancel(done.id)


async def test_a_window_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the gateway is stopped, here."""
    async with gateway(tmp_path, endless, at_a_time=1) as (url, engine), of(url) as client:
        batch = await start(client, [*chats("a"), *chats("b", model="m")])
        await engine.asked()
    now = BatchStore.now
    monkeypatch.setattr(BatchStore, "now", lambda store: now(store) + WINDOW_SECONDS)
    async with gateway(tmp_path) as (url, _), of(url) as client:
        batch = await ended(client, batch.id)
        assert (batch.status, batch.expired_at is not None) == ("expired", True)
        assert [each["custom_id"] for each in await read(client, batch.output_file_id)] == ["a"]
        (rest,) = await read(client, batch.error_file_id)
        assert (rest["custom_id"], rest["response"], rest["error"]["code"]) == ("b", None, "batch_expired")


async def test_places(tmp_path: Path) -> None:
    """Two batches share the places, request by request, and one model's requests come together."""
    now, maximum = 0, 0
    release = asyncio.Event()

    async def counted(exchange: Exchange) -> None:
        nonlocal now, maximum
        now += 1
        maximum = max(maximum, now)
        await release.wait()
        await answers(completion("Yes."))(exchange)
        now -= 1

    async with gateway(tmp_path, counted, at_a_time=3) as (url, engine), of(url) as client:
        first = await start(client, chats(*"abcdef", model="m"))
        second = await start(client, chats(*"ghijkl", model="m"))
        await engine.asked(3)
        release.set()
        for batch in (first, second):
            assert (await ended(client, batch.id)).status == "completed"
        assert maximum == 3


async def test_files(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (url, _), of(url) as client:
        content = b"".join(each + b"\n" for each in chats(*(f"text {number}" for number in range(20_000))))
        made = await client.files.create(
            file=("ä.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert (made.filename, made.bytes, made.status) == ("ä.jsonl", len(content), "processed")
        assert made.expires_at == made.created_at + 3600
        assert (await client.files.content(made.id)).content == content
        assert (await client.files.retrieve(made.id)).to_dict() == made.to_dict()
        others = [await client.files.create(file=b"x", purpose="batch") for _ in range(3)]
        listed = [file.id async for file in client.files.list(limit=2, order="asc")]
        assert sorted(listed) == sorted([made.id, *(file.id for file in others)])
        assert [file.id async for file in client.files.list(purpose="batch_output")] == []
        assert (await client.files.delete(made.id)).deleted
        for asked in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(NotFoundError):
                await asked(made.id)


async def test_what_is_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path, storage_max_bytes=2000) as (url, _), of(url) as client:
        with pytest.raises(BadRequestError, match="purpose"):
            await client.files.create(file=b"x", purpose="fine-tune")
        with pytest.raises(BadRequestError, match="input_file_id"):
            await client.batches.create(input_file_id="file-x", endpoint=ENDPOINT, completion_window="24h")
        with pytest.raises(BadRequestError, match="allowed: /v1"):
            await client.batches.create(input_file_id="file-x", endpoint="/v1/moderations", completion_window="24h")
        await client.files.create(file=b"x" * 1500, purpose="batch")
        with pytest.raises(BadRequestError, match="storage_max_bytes") as raised:
            await client.files.create(file=b"x" * 1500, purpose="batch")
        assert raised.value.code == "storage_limit_exceeded"
        async with httpx.AsyncClient(base_url=f"{url}/v1") as http:
            for body, head in (
                (b"--x\r\n", "multipart/form-data; boundary=x"), (b"{}", "application/json"),
                (b"x", "multipart/form-data"),
            ):  # fmt: skip
                answer = await http.post("/files", content=body, headers={"content-type": head})
                assert answer.status_code == 400, answer.text


async def test_answers_count(tmp_path: Path) -> None:
    """Once the answers fill the user's space, further lines get none."""
    async with gateway(tmp_path, storage_max_bytes=190_000, at_a_time=1) as (url, _), of(url) as client:
        batch = await ended(client, (await start(client, chats(*(f"{n} {'x' * 300}" for n in range(100))))).id)
        assert batch.status == "completed"
        errors = await read(client, batch.error_file_id)
        assert {each["error"]["code"] for each in errors} == {"storage_limit_exceeded"}
        assert len(errors) + len(await read(client, batch.output_file_id)) == 100


async def test_lines_count(tmp_path: Path) -> None:
    """A batch whose lines don't fit beside those of others fails, and frees what it took."""
    async with gateway(tmp_path, endless, storage_max_bytes=200_000) as (url, engine), of(url) as client:
        lines = chats(*(f"{n} {'x' * 300}" for n in range(100)), model="m")
        first = await start(client, lines)
        await engine.asked()
        second = await ended(
            client,
            (
                await client.batches.create(
                    input_file_id=first.input_file_id, endpoint=ENDPOINT, completion_window="24h"
                )
            ).id,
        )
        assert second.status == "failed"
        assert second.errors is not None
        assert second.errors.data is not None
        assert [fault.code for fault in second.errors.data] == ["storage_limit_exceeded"]
        await client.files.create(file=b"x" * 10_000, purpose="batch")


async def test_an_input_that_is_deleted_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = BatchStore.begin_lines
    async with gateway(tmp_path) as (url, _), of(url) as client:
        file = await client.files.create(file=("in.jsonl", chats("a")[0]), purpose="batch")

        async def late(store: BatchStore, id: str) -> None:
            async with of(url) as another:
                with contextlib.suppress(NotFoundError):
                    await another.files.delete(file.id)
            await begin(store, id)

        monkeypatch.setattr(BatchStore, "begin_lines", late)
        made = await client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        batch = await ended(client, made.id)
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [fault.code for fault in batch.errors.data] == ["input_file_deleted"]


async def test_nobody_waits_while_an_input_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()
    feed = LineReader.feed

    def slow(reader: LineReader, data: bytes) -> list[Line | Fault]:
        reading.set()
        go_on.wait(PATIENCE)
        return feed(reader, data)

    monkeypatch.setattr(LineReader, "feed", slow)
    async with gateway(tmp_path) as (url, _), of(url) as client:
        batch = await start(client, [line("a", model="echo", messages=[{"role": "user", "content": "x" * 300_000}])])
        assert await asyncio.to_thread(reading.wait, PATIENCE)
        assert (await client.batches.retrieve(batch.id)).status == "validating"
        go_on.set()
        assert (await ended(client, batch.id)).status == "completed"


async def test_each_key_sees_its_own(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / FILE)
    ann, bob = (keys.add(tenant="acme", user=user, scopes=["models"])[1] for user in ("ann", "bob"))
    async with gateway(tmp_path) as (url, _), of(url, ann) as hers, of(url, bob) as his:
        batch = await ended(hers, (await start(hers, chats("mine"))).id)
        assert batch.status == "completed"
        assert [each.id async for each in his.batches.list()] == []
        assert [each.id async for each in his.files.list()] == []
        assert len([each.id async for each in hers.files.list()]) == 2
        assert batch.output_file_id is not None
        for file in (batch.input_file_id, batch.output_file_id):
            with pytest.raises(NotFoundError):
                await his.files.content(file)
        for asked in (his.batches.retrieve, his.batches.cancel):
            with pytest.raises(NotFoundError):
                await asked(batch.id)
        with pytest.raises(BadRequestError, match="no such file"):
            await his.batches.create(input_file_id=batch.input_file_id, endpoint=ENDPOINT, completion_window="24h")
        async with of(url, "wrong") as nobody:
            with pytest.raises(APIStatusError) as raised:
                await nobody.files.list()
        assert raised.value.status_code == 401


async def test_pages_of_batches(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (url, _), of(url) as client:
        made = [(await start(client, chats("a"))).id for _ in range(5)]
        assert sorted([each.id async for each in client.batches.list(limit=2)]) == sorted(made)

"""Which server a request goes to, and what is done where that one can't answer: real servers on loopback."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import SecretStr

from gateway.backends import replicas
from gateway.backends.choice import SLACK
from gateway.backends.openai import OpenAIBackend
from gateway.config import Config, Engines, Model, Runtime
from gateway.core import Gateway, fallbacks
from gateway.errors import (
    Backoff,
    GatewayError,
    ProviderInvalidModel,
    ProviderInvalidRequest,
    ProviderModelNotLoaded,
    ProviderRateLimit,
    ProviderUnavailable,
    WeightsMissing,
)
from gateway.features.operations.snapshot import snapshot
from gateway.wire.chat import ChatRequest, encode
from tests.gateway.client import chat
from tests.gateway.double import Double, Exchange, Script, answers, chunk, completion, endless, streams
from tests.gateway.running import FAST, running
from tests.patience import PATIENCE
from tests.support.doubles import asked, cut, doubles, gone, request
from tests.support.real_engine import needs_xllamacpp

BUSY = answers({"error": {"message": "busy"}}, 503)
LIMITED = answers({"error": {"message": "slow down"}}, 429)
WRONG = answers({"error": {"message": "no such field"}}, 400)
STREAM = streams(chunk("Hello"), chunk(reason="stop"))


@asynccontextmanager
async def gateway(*models: Model) -> AsyncIterator[Gateway]:
    config = Config(source=Path("config.yaml"), active_model=models[0].name, models={m.name: m for m in models})
    async with Gateway(config) as gateway:
        yield gateway


def model(double: Double | None = None, name: str = "m", **settings: Any) -> Model:
    url = {"base_url": f"http://127.0.0.1:{double.address.port}"} if double is not None else {}
    return Model(name=name, runtime="openai", **{**url, **settings})


def several(found: list[Double], **settings: Any) -> Model:
    return model(replicas=tuple(f"http://127.0.0.1:{double.address.port}" for double in found), **settings)


# Parameters


@pytest.mark.parametrize(
    ("settings", "sent", "came"),
    [
        ({"strip_params": ("seed",)}, {"seed": 1, "top_k": 2}, {"top_k": 2}),
        ({"strip_params": ("seed",), "defaults": {"seed": 7}}, {"seed": 1}, {"seed": 7}),
        ({"strip_params": ("max_tokens",)}, {"max_completion_tokens": 9}, {}),
        ({"strip_params": ("stop", "max_tokens"), "defaults": {"max_tokens": 5}}, {"max_tokens": 9}, {"max_tokens": 5}),
        ({"force_params": {"seed": 3}}, {"seed": 1}, {"seed": 3}),
        ({"force_params": {"seed": 3}}, {}, {"seed": 3}),
        ({"force_params": {"max_tokens": 4}}, {"max_completion_tokens": 9}, {"max_tokens": 4}),
        ({"force_params": {"logit_bias": None}}, {}, {"logit_bias": None}),
    ],
)  # fmt: skip
async def test_parameters_are_filtered(settings: dict[str, Any], sent: dict[str, Any], came: dict[str, Any]) -> None:
    async with doubles((answers(),)) as (double,), gateway(model(double, **settings)) as running:
        await asked(running, request(**sent))
        assert double.requests[0].json == {"model": "m", **chat("Hi"), **came}


async def test_an_alias_is_the_model() -> None:
    async with doubles((answers(),)) as (double,), gateway(model(double, aliases=("gpt-4o",))) as running:
        await asked(running, request(model="gpt-4o"))
        assert double.requests[0].json["model"] == "m"


async def test_a_server_of_somebody_else_s_is_asked_once_without_retries() -> None:
    async with doubles((gone, STREAM)) as (double,), gateway(model(double)) as running:
        with pytest.raises(ProviderUnavailable):
            await asked(running, request(stream=True))
        assert len(double.requests) == 1


# Retries and fallbacks


@pytest.mark.parametrize(
    ("failing", "stream"),
    [(BUSY, False), (BUSY, True), (LIMITED, False), (LIMITED, True), (gone, False), (gone, True), (cut, True)],
    ids=["503", "503 streamed", "429", "429 streamed", "gone", "gone streamed", "cut"],
)
async def test_what_may_pass_is_tried_again(failing: Script, stream: bool) -> None:
    good = STREAM if stream else answers()
    async with doubles((failing, failing, good)) as (double,), gateway(model(double, retries=2)) as running:
        found = b"".join(await asked(running, request(stream=stream)))
        assert b"Hello" in found
        assert len(double.requests) == 3
        assert dict(running.request_log.stats("m").outcomes)["ok"] == 1


async def test_jitter_never_shortens_what_an_engine_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    class Recorded(Backoff):
        def delay(self, failures: int, at_least: float = 0.0) -> float:
            delays.append(super().delay(failures, at_least))
            return 0.0

    monkeypatch.setattr(fallbacks, "RETRY", Recorded(*fallbacks.RETRY))
    loading = answers({"error": {"message": "Loading model"}}, 503)  # read as "in one second"
    async with doubles((loading, answers())) as (double,), gateway(model(double, retries=1)) as running:
        assert b"Hello" in b"".join(await asked(running, request()))
    assert delays == [1.0]


async def test_retries_are_bounded() -> None:
    async with doubles((BUSY,)) as (double,), gateway(model(double, retries=1)) as running:
        with pytest.raises(ProviderUnavailable, match="busy"):
            await asked(running, request())
        assert len(double.requests) == 2


async def test_without_retries_nothing_is_tried_again() -> None:
    async with doubles((BUSY,)) as (double,), gateway(model(double)) as running:
        with pytest.raises(ProviderUnavailable):
            await asked(running, request())
        assert len(double.requests) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_fallbacks_are_asked_in_turn(stream: bool) -> None:
    good = STREAM if stream else answers()
    async with doubles((BUSY,), (LIMITED,), (good,)) as found:
        first, second, third = found
        models = (
            model(first, fallbacks=("second", "third")),
            model(second, "second"),
            model(third, "third"),
        )
        async with gateway(*models) as running:
            with await running.chat(request(stream=stream)) as run:
                assert run.model.name == "third"
                assert b"Hello" in (b"".join(await run.payloads()) if stream else await run.whole())
            assert [len(double.requests) for double in found] == [1, 1, 1]
            assert {name: dict(running.request_log.stats(name).outcomes) for name in running.routes} == {
                "m": {"provider_unavailable": 1},
                "second": {"provider_rate_limit": 1},
                "third": {"client_left" if stream else "ok": 1},
            }


async def test_who_stands_in_is_told() -> None:
    async with running(answers(), retries=1, fallbacks=("echo",)) as found:
        assert "x-ctxgate-fallback" not in (await found.ask(chat("Hi"))).headers
    async with running(BUSY, fallbacks=("echo",)) as found:
        answer = await found.ask(chat("Hi"))
        assert (answer.status, answer.headers["x-ctxgate-fallback"], answer.json["model"]) == (200, "echo", "echo")


@pytest.mark.parametrize("http", [FAST, "httptools"], ids=["fast", "asgi"])
async def test_who_stands_in_is_told_by_a_stream(http: str) -> None:
    async with running(STREAM, fallbacks=("echo",), http=http) as found:
        answer = await found.ask(chat("Hi", stream=True))
        assert "x-ctxgate-fallback" not in answer.headers
        assert b"fallback" not in answer.body
    async with running(BUSY, fallbacks=("echo",), http=http) as found:
        answer = await found.ask(chat("Hi", stream=True))
        assert (answer.status, answer.headers["x-ctxgate-fallback"]) == (200, "echo")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert last_told(answer.events) == {"fallback": "echo"}


@pytest.mark.parametrize("http", [FAST, "httptools"], ids=["fast", "asgi"])
async def test_a_stream_that_has_begun_with_comments_tells_it_at_its_end(http: str) -> None:
    waited = asyncio.Event()

    async def later_busy(exchange: Exchange) -> None:
        await waited.wait()
        await BUSY(exchange)

    progress = {"progress_after_seconds": 0.05}
    async with (
        running(later_busy, fallbacks=("echo",), http=http, progress=progress) as found,
        await found.connect() as client,
    ):
        await client.post(chat("Hi", stream=True))
        _, status, headers = await client.head()
        assert (status, "x-ctxgate-fallback" in headers) == (200, False)
        parts = client.parts()
        assert (await anext(parts)).startswith(b": ctxgate ")
        waited.set()
        rest = b"".join([part async for part in parts])
        frames = [frame.removeprefix(b"data: ") for frame in rest.split(b"\n\n") if frame.startswith(b"data: ")]
        assert last_told(frames) == {"fallback": "echo"}


def last_told(frames: list[bytes]) -> Any:
    """What the chunk with the finish_reason says in its extension field; no other chunk has one."""
    assert frames[-1] == b"[DONE]"
    chunks = [json.loads(frame) for frame in frames[:-1]]
    (last,) = [each for each in chunks if "ctxgate" in each]
    assert last["choices"][0]["finish_reason"] == "stop"
    return last["ctxgate"]


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "responses": ("/v1/responses", {"model": "m", "input": "Hi", "store": False}),
    "messages": ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
    "ollama": ("/api/chat", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", OTHERS)
async def test_every_api_names_the_fallback(api: str, stream: bool) -> None:
    path, body = OTHERS[api]
    async with running(BUSY, fallbacks=("echo",)) as found:
        answer = await found.ask({**body, "stream": stream}, path)
        assert (answer.status, answer.headers["x-ctxgate-fallback"]) == (200, "echo")


async def test_a_fallback_s_own_fallbacks_are_not_asked() -> None:
    async with doubles((BUSY,), (BUSY,), (answers(),)) as (first, second, third):
        models = (model(first, fallbacks=("b",)), model(second, "b", fallbacks=("c",)), model(third, "c"))
        async with gateway(*models) as running:
            with pytest.raises(ProviderUnavailable):
                await asked(running, request())
            assert len(third.requests) == 0


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_what_will_not_pass_is_told_at_once(status: int) -> None:
    failing = answers({"error": {"message": "no"}}, status)
    async with doubles((failing,), (answers(),)) as (first, second):
        models = (model(first, retries=3, fallbacks=("b",)), model(second, "b"))
        async with gateway(*models) as running:
            with pytest.raises(GatewayError):
                await asked(running, request())
            assert (len(first.requests), len(second.requests)) == (1, 0)


MISSING = Path("/nowhere/model.gguf")


def without_weights(name: str, **settings: Any) -> Model:
    return Model(name=name, runtime="llama.cpp", path=MISSING, **settings)


async def test_missing_weights_are_not_retried_but_replaced() -> None:
    async with doubles((answers(),)) as (double,):
        models = (without_weights("m", retries=3, fallbacks=("n", "b")), without_weights("n"), model(double, "b"))
        async with gateway(*models) as running:
            with await running.chat(request()) as run:
                assert run.model.name == "b"
            assert {name: dict(running.request_log.stats(name).outcomes) for name in ("m", "n")} == {
                "m": {"provider_invalid_model": 1},
                "n": {"provider_invalid_model": 1},
            }


@pytest.mark.parametrize("first", ["m", "b"])
async def test_what_may_pass_is_told_before_missing_weights(first: str) -> None:
    async with doubles((BUSY,)) as (double,):
        missing = without_weights("m", fallbacks=("b",) if first == "m" else ())
        busy = model(double, "b", fallbacks=("m",) if first == "b" else ())
        async with gateway(missing, busy) as running:
            with pytest.raises(ProviderUnavailable, match="busy"):
                await asked(running, request(model=first))


async def test_of_missing_weights_the_model_s_own_are_told() -> None:
    async with gateway(without_weights("m", fallbacks=("n",)), without_weights("n")) as running:
        with pytest.raises(WeightsMissing, match="model 'm'"):
            await asked(running, request())


async def test_after_the_first_byte_nobody_else_is_asked() -> None:
    async def breaks(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(chunk("Hel"))
        exchange.reset()

    async with (
        doubles((breaks,), (STREAM,)) as (first, second),
        gateway(model(first, retries=2, fallbacks=("b",)), model(second, "b")) as running,
    ):
        with await running.chat(request(stream=True)) as run:
            assert b"Hel" in b"".join(await run.payloads())
            with pytest.raises(ProviderUnavailable):
                await run.payloads()
        assert (len(first.requests), len(second.requests)) == (1, 0)


# Replicas


async def test_the_least_busy_replica_is_asked() -> None:
    async with doubles((endless,), (endless,), (endless,)) as found, gateway(several(found)) as running:
        runs = [await running.chat(request(f"Question {n}", stream=True)) for n in range(6)]
        assert [len(double.requests) for double in found] == [2, 2, 2]
        for run in runs:
            run.close()
        assert [replica.in_flight for replica in running.routes["m"].server.replicas()] == [0, 0, 0]


async def test_a_conversation_stays_where_its_prompt_is_known() -> None:
    async with doubles((answers(),), (answers(),)) as found, gateway(several(found)) as running:
        talks = {who: [{"role": "user", "content": f"I am {who}"}] for who in ("Ada", "Bob", "Eve", "Joe")}
        for _ in range(4):
            for talk in talks.values():
                await asked(running, ChatRequest.parse(encode({"messages": talk})))
                talk += [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Go on"}]
        for who in talks:
            at = [index for index, double in enumerate(found) for each in double.requests if who in str(each.body)]
            assert len(at) == 4
            assert len({*at}) == 1, who
        assert all(double.requests for double in found)


async def test_a_cache_is_worth_a_short_queue_alone() -> None:
    async with doubles((endless,), (endless,)) as found, gateway(several(found)) as running:
        runs = [await running.chat(request("the same", stream=True)) for _ in range(2 * SLACK)]
        # The first SLACK meet the cache; then the other is so much less busy that it reads the prompt, too.
        assert [len(double.requests) for double in found] == [SLACK, SLACK]
        for run in runs:
            run.close()


@pytest.mark.parametrize("failing", [BUSY, gone], ids=["503", "gone"])
async def test_a_replica_that_fails_is_left_out_and_probed_again(
    failing: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "PROBES", Backoff(0.05, 0.1))
    back = asyncio.Event()

    async def sick(exchange: Exchange) -> None:
        if back.is_set():
            await exchange.whole(completion("first") if exchange.method == "POST" else {"data": []})
        else:
            await failing(exchange)

    async with doubles((sick,), (answers(completion("second")),)) as found, gateway(several(found)) as running:
        for number in range(4):
            assert b"second" in (await asked(running, request(f"{number}")))[0]
        posts = [each for each in found[0].requests if each.method == "POST"]
        assert len(posts) == 1, "left out after its first failure"
        assert [replica.healthy for replica in running.routes["m"].server.replicas()] == [False, True]
        back.set()
        while not running.routes["m"].server.replicas()[0].healthy:  # noqa: ASYNC110  a probe of its own accord ends it
            await asyncio.sleep(0.01)
        answered = [(await asked(running, request(f"again {number}")))[0] for number in range(4)]
        assert any(b"first" in each for each in answered)


async def test_a_replica_that_says_slow_down_is_no_sick_one() -> None:
    async with doubles((LIMITED,), (answers(),)) as found, gateway(several(found)) as running:
        for _ in range(3):
            await asked(running, request())
        assert all(replica.healthy for replica in running.routes["m"].server.replicas())


async def test_all_replicas_failing_tell_what_the_last_one_says() -> None:
    async with doubles((BUSY,), (LIMITED,)) as found, gateway(several(found)) as running:
        with pytest.raises(ProviderRateLimit, match="slow down"):
            await asked(running, request())
        # Nobody is left, so the sick one is asked all the same.
        with pytest.raises((ProviderRateLimit, ProviderUnavailable)):
            await asked(running, request())
        assert [len([e for e in double.requests if e.method == "POST"]) for double in found] == [2, 2]


async def test_a_bad_request_is_not_sent_twice() -> None:
    async with doubles((WRONG,), (answers(),)) as found, gateway(several(found)) as running:
        with pytest.raises(ProviderInvalidRequest):
            await asked(running, request())
        assert [len(double.requests) for double in found] == [1, 0]


async def test_a_replica_that_breaks_in_mid_stream_is_left_out() -> None:
    async def breaks(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(chunk("Hel"))
        exchange.reset()

    async with doubles((breaks,), (STREAM,)) as found, gateway(several(found)) as running:
        with await running.chat(request(stream=True)) as run:
            assert await run.payloads()
            with pytest.raises(ProviderUnavailable):
                await run.payloads()
        assert [replica.healthy for replica in running.routes["m"].server.replicas()] == [False, True]


async def test_replicas_whose_text_is_read_here() -> None:
    async def llama_cpp(exchange: Exchange) -> None:
        if exchange.path == "/apply-template":
            await exchange.whole({"prompt": "Hi"})
        elif exchange.path == "/props":
            await exchange.whole({})
        else:
            text = '<|tool_call_start|>[now(zone="UTC")]<|tool_call_end|>'
            await streams({"choices": [{"index": 0, "text": text}]}, {"choices": [{"finish_reason": "stop"}]})(exchange)

    tools = [{"type": "function", "function": {"name": "now", "parameters": {}}}]
    async with doubles((llama_cpp,), (llama_cpp,)) as found:
        urls = tuple(f"http://127.0.0.1:{double.address.port}" for double in found)
        kind = Model(name="m", runtime="llama.cpp", replicas=urls, tool_call_format="lfm2", tool_prompt="template")
        async with gateway(kind) as running:
            (body,) = await asked(running, request(tools=tools, tool_choice="required"))
            (call,) = json.loads(body)["choices"][0]["message"]["tool_calls"]
            assert call["function"] == {"name": "now", "arguments": '{"zone": "UTC"}'}


async def test_nobody_probes_once_the_gateway_is_closed() -> None:
    async with doubles((endless,), (endless,)) as found, gateway(several(found)) as running:
        with await running.chat(request(stream=True)) as run:
            assert await run.payloads()
            await running.aclose()
            with pytest.raises(ProviderUnavailable):
                await run.payloads()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("probe ")]


# HTTPS


def openssl(*args: str | Path) -> None:
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, timeout=PATIENCE)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `ca.pem`, the authority's certificate, and `server.pem`, the key and certificate of localhost."""
    folder = tmp_path_factory.mktemp("tls")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    ca_key, ca = folder / "ca.key", folder / "ca.pem"
    openssl("req", "-x509", *key, "-keyout", ca_key, "-out", ca, "-subj", "/CN=An authority", "-days", "2")
    asked, names = folder / "server.csr", folder / "names"
    names.write_text("subjectAltName=DNS:localhost\nauthorityKeyIdentifier=keyid\n")
    openssl("req", *key, "-keyout", folder / "server.key", "-out", asked, "-subj", "/CN=localhost")
    openssl("x509", "-req", "-in", asked, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2",
            "-extfile", names, "-out", folder / "server.crt")  # fmt: skip
    both = (folder / "server.key").read_text() + (folder / "server.crt").read_text()
    (folder / "server.pem").write_text(both)
    return folder


@asynccontextmanager
async def secure(authority: Path, *scripts: Script) -> AsyncIterator[tuple[Double, Model]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem")
    async with asyncio.timeout(PATIENCE), Double(*scripts).serve(ssl=context) as double:
        url = f"https://localhost:{double.address.port}"
        yield double, Model(name="m", runtime="openai", base_url=url, api_key=SecretStr("sesame"))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_https_with_a_private_authority(stream: bool, authority: Path) -> None:
    script = STREAM if stream else answers()
    async with secure(authority, script) as (double, plain):
        async with gateway(replace(plain, ca_file=authority / "ca.pem")) as running:
            for _ in range(2):
                assert b"Hello" in b"".join(await asked(running, request(stream=stream)))
        assert [each.headers["authorization"] for each in double.requests] == ["Bearer sesame"] * 2
        assert double.connections == 1


async def test_an_unknown_authority_is_told_with_its_cure(authority: Path) -> None:
    async with secure(authority, answers()) as (double, plain), gateway(plain) as running:
        with pytest.raises(ProviderUnavailable, match=r"untrusted certificate .*; set ca_file to the authority"):
            await asked(running, request())
        assert not double.requests


async def test_a_certificate_of_another_host_is_refused(authority: Path) -> None:
    async with secure(authority, answers()) as (double, plain):
        url = f"https://127.0.0.1:{double.address.port}"
        async with gateway(replace(plain, base_url=url, ca_file=authority / "ca.pem")) as running:
            with pytest.raises(ProviderUnavailable, match="untrusted certificate"):
                await asked(running, request())


async def test_a_ca_file_that_isn_t_there(authority: Path) -> None:
    missing = Model(name="m", runtime="openai", base_url="https://localhost:1", ca_file=Path("/nowhere.pem"))
    async with gateway(missing) as running:
        with pytest.raises(ProviderUnavailable, match=r"ca_file /nowhere.pem can't be read: No such file"):
            await asked(running, request())


async def test_replicas_have_what_their_kind_of_server_has() -> None:
    async with doubles((answers(),), (answers(),)) as found, gateway(several(found)) as running:
        backend = await running.routes["m"].server.backend()
        for name in ("open_raw", "post", "count_tokens"):
            assert hasattr(backend, name) == hasattr(OpenAIBackend, name), name


async def test_an_answer_that_fails_before_it_begins_is_over_where_it_failed() -> None:
    async with (
        doubles((cut,), (STREAM,)) as (first, second),
        gateway(model(first, fallbacks=("b",)), model(second, "b")) as running,
    ):
        with await running.chat(request(stream=True)) as run:
            assert run.model.name == "b"
            assert running.routes["m"].requests.count == 0
            assert running.request_log.stats("m").outcomes == {"provider_unavailable": 1}


async def test_whoever_asks_for_any_tier_gets_the_default_one() -> None:
    async with doubles((answers(),)) as (double,), gateway(model(double)) as running:
        asked_for_any = request(service_tier="auto")
        with await running.chat(asked_for_any) as run:
            await run.whole()
        assert asked_for_any.serving.tier == "default"


# A changed configuration


def with_models(gateway: Gateway, *models: Model, **settings: Any) -> Config:
    return replace(gateway.config, models={model.name: model for model in models}, **settings)


async def test_an_answer_ends_where_it_began_and_the_next_one_goes_to_the_new_server() -> None:
    go_on = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.event(chunk("first"))
        await go_on.wait()
        await exchange.event(chunk(" half"), chunk(reason="stop"))
        await exchange.end()

    async with doubles((slow,), (answers(completion("second")),)) as (old, new), gateway(model(old)) as running:
        with await running.chat(request(stream=True)) as run:
            assert b"first" in b"".join(await run.payloads())
            running.apply(with_models(running, model(new)))
            assert b"second" in (await asked(running, request()))[0]
            assert [route.requests.count for route in running.leaving.values()] == [1]
            go_on.set()
            rest: list[bytes] = []
            while payloads := await run.payloads():
                rest += payloads
            assert b" half" in b"".join(rest)
        await asyncio.wait([*running.leaving])
        assert not running.leaving
        await old.count_open(0)
        assert running.request_log.stats("m").outcomes == {"ok": 2}, "counted on, whichever server it was"


async def test_what_does_not_change_keeps_its_connections() -> None:
    async with doubles((answers(),), (answers(),)) as (one, two), gateway(model(one), model(two, "b")) as running:
        await asked(running, request())
        await asked(running, request(model="b"))
        routes = dict(running.routes)
        running.apply(with_models(running, model(one), model(two, "b", defaults={"seed": 1}), active_model="b"))
        assert running.routes["m"] is routes["m"]
        assert running.routes["b"] is not routes["b"]
        await asked(running, request(model="m"))
        await asked(running, request())
        assert one.connections == 1
        assert two.requests[-1].json["seed"] == 1


async def test_an_answer_without_end_is_cut_after_the_time_that_it_has() -> None:
    async with doubles((endless,), (answers(),)) as (old, new), gateway(model(old)) as running:
        with await running.chat(request(stream=True)) as run:
            assert await run.payloads()
            running.apply(with_models(running, model(new), engines=Engines(drain_timeout_seconds=0.05)))
            with pytest.raises(ProviderUnavailable):
                await run.payloads()
        await old.count_open(0)


SETTING: dict[str, Any] = {"defaults": {"seed": 1}}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("changes", [1, 2])
async def test_a_changed_setting_cuts_no_answer_however_long_it_takes(stream: bool, changes: int) -> None:
    cut: list[bool] = []

    async def slow(exchange: Exchange) -> None:
        if stream:
            await exchange.start()
            await exchange.event(chunk("first"))
        cut.append(await exchange.gone_at_once())
        if stream:
            await exchange.event(chunk(" half"), chunk(reason="stop"))
            await exchange.end()
        else:
            await exchange.whole(completion("first half"))

    async with doubles((slow, answers())) as (double,), gateway(model(double)) as running:
        answer = asyncio.create_task(asked(running, request(stream=stream)))
        await double.asked()
        for seed in range(changes):
            changed = model(double, defaults={"seed": seed})
            running.apply(with_models(running, changed, engines=Engines(drain_timeout_seconds=0)))
        assert b"half" in b"".join(await answer)
        assert cut == [False]
        await asyncio.gather(*running.leaving)
        await double.count_open(0)


async def test_a_changed_setting_turns_no_request_in_line_away() -> None:
    go_on = asyncio.Event()

    async def held(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.whole(completion())

    async with doubles((held,)) as (double,), gateway(model(double)) as running:
        route = running.routes["m"]
        person = asyncio.create_task(asked(running, request()))
        await double.asked()
        flex = asyncio.create_task(asked(running, request(service_tier="flex")))
        while route.line is None or not route.line:  # noqa: ASYNC110
            await asyncio.sleep(0)
        running.apply(with_models(running, model(double, **SETTING), engines=Engines(drain_timeout_seconds=0)))
        assert snapshot(running, None)["leaving"] == [{"name": "m", "in_flight": 1, "waiting": 1, "pid": None}]
        assert not await double.requests[0].gone_at_once()
        go_on.set()
        assert [b"Hello" in answer for (answer,) in await asyncio.gather(person, flex)] == [True, True]
        await asyncio.gather(*running.leaving)


@needs_xllamacpp
@pytest.mark.parametrize("change", ["replaced", "removed"])
async def test_a_request_that_outlives_its_engine_starts_it_no_more(test_model: Path, change: str) -> None:
    """Nobody would end that process."""
    go_on = asyncio.Event()

    async def held(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.whole(completion("a cat"))

    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]
    async with doubles((held,)) as (double,):
        eyes = model(double, "eyes")
        settings: dict[str, Any] = {"path": test_model, "context_window": 512, "images": "describe"}
        blind = Model(name="blind", runtime="llama.cpp", describe_with="eyes", **settings)
        async with gateway(eyes, blind) as running:
            engine = running.routes["blind"].engine
            assert engine is not None
            said = [{"role": "user", "content": picture}]
            looks = asyncio.create_task(asked(running, request(model="blind", messages=said)))
            await double.asked()
            new = [replace(blind, engine=Runtime(threads=1))] if change == "replaced" else []
            running.apply(with_models(running, eyes, *new, engines=Engines(drain_timeout_seconds=0)))
            await asyncio.gather(*running.leaving)
            go_on.set()
            with pytest.raises(ProviderModelNotLoaded, match="its former engine has ended"):
                await looks
            assert (engine.state, engine.launcher.starts) == ("stopped", 0)


@needs_xllamacpp
async def test_an_engine_s_end_takes_no_longer_than_its_route_s(test_model: Path) -> None:
    tiny = Model(name="m", runtime="llama.cpp", path=test_model, context_window=512)
    async with gateway(tiny) as running:
        route = running.routes["m"]
        assert route.engine is not None
        with await running.chat(request(stream=True, ignore_eos=True)) as run:
            assert await run.payloads()
            async with asyncio.timeout(PATIENCE):  # the drain alone would have ten minutes
                await route.retire(0.05)
            assert (route.engine.state, route.engine.launcher.starts) == ("stopped", 1)


async def test_closing_waits_for_no_answer_that_is_still_leaving() -> None:
    async with doubles((endless,), (answers(),)) as (old, new), gateway(model(old)) as running:
        run = await running.chat(request(stream=True))
        assert await run.payloads()
        running.apply(with_models(running, model(new)))
        (leaving,) = running.leaving
        await running.aclose()
        await asyncio.wait([leaving])
        assert leaving.cancelled()
        run.close()


async def test_a_removed_model_is_unknown_and_its_answers_end() -> None:
    async with doubles((endless,), (answers(),)) as (one, two), gateway(model(one), model(two, "b")) as running:
        with await running.chat(request(stream=True)) as run:
            assert await run.payloads()
            running.apply(with_models(running, model(two, "b"), active_model="b"))
            with pytest.raises(ProviderInvalidModel):
                await running.chat(request(model="m"))
        await asyncio.wait([*running.leaving])
        await one.count_open(0)


async def test_closing_ends_what_is_still_leaving() -> None:
    async with doubles((endless,), (answers(),)) as (old, new):
        async with gateway(model(old)) as running:
            run = await running.chat(request(stream=True))
            running.apply(with_models(running, model(new)))
        await old.count_open(0)
        run.close()

"""A span for each request: what it says, nothing of contents, and nothing at all where it is off."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.app import build
from gateway.config import Config, Model
from gateway.config.values import Log
from gateway.core import Gateway
from gateway.engines.machine import this_machine
from gateway.engines.recipe import Machine
from gateway.errors import ProviderUnavailable
from gateway.features.traces.traces import Traces
from tests.cli.commands import config, ctxgate
from tests.gateway.double import answers, completion
from tests.gateway.running import FAST, running
from tests.patience import PATIENCE
from tests.provider.server import serve
from tests.support.put_aside import asked, places, put_aside_by, streamed
from tests.support.shared_memory import gateway_of, limits, sized

SECRET = "The password is swordfish."


@contextmanager
def receiver() -> Iterator[tuple[str, Queue[ExportTraceServiceRequest]]]:
    """An OTLP/HTTP receiver: its URL, and what came."""
    came: Queue[ExportTraceServiceRequest] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            came.put(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def config_of(tmp_path: Path, **log: Any) -> Config:
    return Config(
        source=tmp_path / "config.yaml",
        active_model="e",
        models={"e": Model(name="e", runtime="echo")},
        log=Log(**log),
        state_dir=tmp_path,
    )


def asks(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "e", "messages": [{"role": "user", "content": content}], **more}


def spans_of(came: ExportTraceServiceRequest) -> list[Any]:
    return [span for resource in came.resource_spans for scope in resource.scope_spans for span in scope.spans]


def test_a_real_receiver_gets_them(tmp_path: Path) -> None:
    with receiver() as (url, came):
        with (
            serve(build(config_of(tmp_path, traces=url)), lifespan="on", http=FAST) as base,
            httpx.Client(base_url=base, timeout=PATIENCE, headers={"user-agent": "person/1"}) as http,
        ):
            asked = asks(SECRET, max_tokens=99, service_tier="flex")
            assert http.post("/v1/chat/completions", json=asked).status_code == 200
            assert http.post("/v1/embeddings", json={"model": "e", "input": "a"}).status_code >= 400
        # The gateway has ended, so all spans have left.
        requests = [came.get(timeout=PATIENCE)]
        while not came.empty():
            requests.append(came.get())
        spans = [span for request in requests for span in spans_of(request)]
        assert sorted(span.name for span in spans)[0] == "chat e"
        (chat,) = (span for span in spans if span.name == "chat e")
        said = {attribute.key: attribute.value for attribute in chat.attributes}
        assert said["gen_ai.operation.name"].string_value == "chat"
        assert said["gen_ai.request.max_tokens"].int_value == 99
        assert said["openai.response.service_tier"].string_value == "flex"
        assert said["ctxgate.client"].string_value == "person"
        assert chat.end_time_unix_nano > chat.start_time_unix_nano > 0
        names = {each.key: each.value.string_value for each in requests[0].resource_spans[0].resource.attributes}
        assert names["service.name"] == "ctxgate"
        assert not any(b"swordfish" in request.SerializeToString() for request in requests)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Takes the place of the receiver."""
    exporter, made = InMemorySpanExporter(), Traces.__init__

    def init(self: Traces, log: Log) -> None:
        made(self, log, exporter)

    monkeypatch.setattr(Traces, "__init__", init)
    return exporter


def spans(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return list(exporter.get_finished_spans())


@contextmanager
def traced(monkeypatch: pytest.MonkeyPatch, **log: Any) -> Iterator[None]:
    """Gateways that a test opens have `log.traces`."""
    made = Gateway.__init__

    def init(self: Gateway, config: Config, *rest: Any) -> None:
        made(self, replace(config, log=Log(traces="http://127.0.0.1:9", **log)), *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Gateway, "__init__", init)
        yield


def embedded() -> Machine:
    """This machine without a llama-server on its PATH."""
    return replace(this_machine(), which=lambda name: None)


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed")
async def test_what_a_chat_says(
    test_model: Path, tmp_path: Path, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that loads the engine, and a flex answer that gives way to another in the middle."""
    model = Model(name="tiny", runtime="llama.cpp", path=test_model, context_window=512)
    with traced(monkeypatch):
        async with gateway_of(places(model), {"a": sized()}, limits(), embedded, tmp_path) as (gateway, _):
            await streamed(gateway, asked("a", SECRET, stream=True, max_tokens=5, seed=7))
            task, run = await put_aside_by(gateway, asked("a", max_tokens=3), SECRET)
            with run:
                await run.whole()
            await task
    first, *_, second, third = spans(exported)
    said = dict(first.attributes or {})
    assert (first.name, said["gen_ai.provider.name"], said["gen_ai.request.model"]) == ("chat a", "llama.cpp", "a")
    assert (said["gen_ai.request.temperature"], said["gen_ai.request.seed"]) == (0, 7)
    assert said["gen_ai.response.finish_reasons"] == ("length",)
    assert (said["gen_ai.usage.output_tokens"], said["ctxgate.outcome"]) == (5, "ok")
    assert said["gen_ai.usage.input_tokens"]
    assert str(said["gen_ai.response.id"]).startswith("chatcmpl-")
    assert 0 < float(str(said["gen_ai.server.time_to_first_token"])) < PATIENCE
    assert [event.name for event in first.events] == ["queue.entered", "engine.started", "sent", "first_token"]
    assert dict(first.events[0].attributes or {}) == {"ctxgate.waits_for": "stopped"}
    assert [event.timestamp for event in first.events] == sorted(event.timestamp for event in first.events)
    assert [event.name for event in third.events] == ["sent", "put_aside", "went_on"]
    assert dict(third.attributes or {})["openai.response.service_tier"] == "flex"
    assert (dict(third.attributes or {})["gen_ai.usage.output_tokens"], second.name) == (60, "chat a")
    assert "swordfish" not in "".join(span.to_json() for span in spans(exported))


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is not installed")
async def test_a_reload_that_keeps_the_engine_keeps_the_spans(
    test_model: Path, tmp_path: Path, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(name="tiny", runtime="llama.cpp", path=test_model, context_window=512)
    with traced(monkeypatch):
        async with gateway_of(places(model), {"a": sized()}, limits(), embedded, tmp_path) as (gateway, _):
            await streamed(gateway, asked("a", stream=True, max_tokens=2))
            before, config = gateway.routes["a"], gateway.config
            gateway.apply(replace(config, models={"a": replace(config.models["a"], defaults={"seed": 1})}))
            assert gateway.routes["a"] is not before
            assert gateway.routes["a"].engine is before.engine
            await streamed(gateway, asked("a", stream=True, max_tokens=2))
    assert [span.name for span in spans(exported)] == ["chat a", "chat a"]


async def test_errors_and_clients_that_leave(
    tmp_path: Path, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.wire.chat import ChatRequest

    with traced(monkeypatch):
        config = config_of(tmp_path)
        dead = Model(name="dead", runtime="openai", base_url="http://127.0.0.1:9")
        config = replace(config, models={**config.models, "dead": dead})
        async with Gateway(config) as gateway:
            with pytest.raises(ProviderUnavailable):
                await gateway.chat(ChatRequest.parse(json.dumps(asks("Hi", model="dead")).encode()))
            with await gateway.chat(ChatRequest.parse(json.dumps(asks("Hi", stream=True)).encode())):
                pass
    failed, left = spans(exported)
    assert (failed.name, failed.status.is_ok, dict(failed.attributes or {})["error.type"]) == (
        "chat dead",
        False,
        "provider_unavailable",
    )
    assert (left.status.is_unset, dict(left.attributes or {})["ctxgate.outcome"]) == (True, "client_left")


TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("http", [FAST, "httptools"])
async def test_a_trace_goes_on_through_the_gateway(
    http: str, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Request after request on one connection: what one names must not hold for the next."""
    head = f"traceparent: 00-{TRACE}-{CLIENT}-01\r\ntracestate: shop=7\r\n"
    vectors = {"object": "list", "data": [], "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    with traced(monkeypatch):
        async with running(
            answers(completion("Hi")), answers(completion("Hi")), answers(vectors), http=http
        ) as gateway:
            async with await gateway.connect() as client:
                assert (await client.ask(asks("Hi", model="m"), head=head)).status == 200
                assert (await client.ask(asks("Hi", model="m"))).status == 200
                said = {"model": "m", "prompt": "Hi"}
                assert (await client.ask(said, "/v1/completions", head)).status == 200
            sent = [exchange.headers for exchange in gateway.engine.requests]
    continued, own, completed = spans(exported)
    for span, headers in ((continued, sent[0]), (own, sent[1]), (completed, sent[2])):
        assert headers["traceparent"].startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-0")
    for span, headers in ((continued, sent[0]), (completed, sent[2])):
        assert span.parent is not None
        assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, CLIENT)
        assert headers["tracestate"] == "shop=7"
    assert own.parent is None
    assert f"{own.context.trace_id:032x}" != TRACE
    assert "tracestate" not in sent[1]


@pytest.mark.parametrize(
    "malformed",
    [
        "",
        "x",
        f"00-{'0' * 32}-{CLIENT}-01",
        f"ff-{TRACE}-{CLIENT}-01",
        f"00-{TRACE}-{CLIENT}-01-more",
        "00-" + "\u00e9" * 32 + f"-{CLIENT}-01",
        f"00-{TRACE}-{CLIENT}-01\r\ntraceparent: 00-{TRACE}-{CLIENT}-01",
        "a" * 8000,
    ],
)
async def test_a_header_that_names_no_trace_does_no_harm(
    malformed: str, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = f"traceparent: {malformed}\r\ntracestate: \u00e9=,,=\r\n"
    with traced(monkeypatch):
        async with running(answers(completion("Hi"))) as gateway:
            assert (await gateway.ask(asks("Hi", model="m"), head=head)).status == 200
            (exchange,) = gateway.engine.requests
    (span,) = spans(exported)
    assert span.parent is None
    assert exchange.headers["traceparent"].startswith(f"00-{span.context.trace_id:032x}-")


async def test_without_tracing_no_server_hears_of_one() -> None:
    async with running(answers(completion("Hi"))) as gateway:
        head = f"traceparent: 00-{TRACE}-{CLIENT}-01\r\n"
        assert (await gateway.ask(asks("Hi", model="m"), head=head)).status == 200
        (exchange,) = gateway.engine.requests
    assert "traceparent" not in exchange.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_content_if_asked_for(
    stream: bool, tmp_path: Path, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.wire.chat import ChatRequest

    with traced(monkeypatch, trace_content=True):
        async with Gateway(config_of(tmp_path)) as gateway:
            with await gateway.chat(ChatRequest.parse(json.dumps(asks(SECRET, stream=stream)).encode())) as run:
                if stream:
                    while await run.payloads():
                        pass
                else:
                    await run.whole()
    (span,) = spans(exported)
    said = dict(span.attributes or {})
    part = {"type": "text", "content": SECRET}
    assert json.loads(str(said["gen_ai.input.messages"])) == [{"role": "user", "parts": [part]}]
    assert json.loads(str(said["gen_ai.output.messages"])) == [
        {"role": "assistant", "parts": [part], "finish_reason": "stop"}
    ]


def calling(arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


async def test_an_odd_request_is_answered_and_has_a_span(
    tmp_path: Path, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its contents are."""
    from gateway.wire.chat import ChatRequest

    odd: list[Any] = ["x", ["x"], [{"function": "x"}], {"a": 1}, [calling("[" * 5000 + "]" * 5000)]]
    with traced(monkeypatch, trace_content=True):
        async with Gateway(config_of(tmp_path)) as gateway:
            for calls in odd:
                asked = asks("Hi")
                asked["messages"] += [{"role": "assistant", "content": "c", "tool_calls": calls}, *asked["messages"]]
                with await gateway.chat(ChatRequest.parse(json.dumps(asked).encode())) as run:
                    await run.whole()
    assert len(spans(exported)) == len(odd)
    (last, *_) = spans(exported)[::-1]
    said = json.loads(str(dict(last.attributes or {})["gen_ai.input.messages"]))
    assert [part["type"] for message in said for part in message["parts"]] == ["text", "text", "tool_call", "text"]


async def test_a_span_that_can_t_be_written_fails_no_request(
    tmp_path: Path, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gateway.wire.chat import ChatRequest

    def write(*_: Any) -> None:
        raise TypeError("something odd")

    monkeypatch.setattr(Traces, "write", write)
    with traced(monkeypatch):
        async with Gateway(config_of(tmp_path)) as gateway:
            with await gateway.chat(ChatRequest.parse(json.dumps(asks("Hi")).encode())) as run:
                assert b"Hi" in await run.whole()
    assert len(spans(exported)) == 1
    assert "something odd" in caplog.text


async def test_a_number_that_no_receiver_takes_is_left_out(
    tmp_path: Path, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it, all spans of its batch would be lost."""
    from gateway.wire.chat import ChatRequest

    with traced(monkeypatch):
        async with Gateway(config_of(tmp_path)) as gateway:
            asked = asks("Hi", seed=2**63, temperature=0.5)
            with await gateway.chat(ChatRequest.parse(json.dumps(asked).encode())) as run:
                await run.whole()
    (span,) = spans(exported)
    said = dict(span.attributes or {})
    assert ("gen_ai.request.seed" in said, said["gen_ai.request.temperature"]) == (False, 0.5)


def test_nothing_is_imported_where_it_is_off() -> None:
    code = (
        "import sys; from pathlib import Path; from gateway.app import build; from gateway.config import Config, Model;"
        "build(Config(source=Path('c'), active_model='e', models={'e': Model(name='e', runtime='echo')}));"
        "print([name for name in sys.modules if 'opentelemetry' in name or 'features.traces.' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout == "['gateway.features.traces.feature']\n"


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gateway.features.traces.route", "gateway.features.traces.traces", "opentelemetry.sdk.resources"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ProviderUnavailable, match=r"pip install 'ctxgate\[otel\]'"):
        Gateway(config_of(tmp_path, traces="http://127.0.0.1:9"))


def test_an_address_that_is_none(tmp_path: Path) -> None:
    config(tmp_path, "active_model: e\nmodels: {e: {runtime: echo}}\nlog: {traces: here}\n")
    done = ctxgate("check", cwd=tmp_path)
    assert done.returncode != 0
    assert "log.traces" in done.stdout + done.stderr

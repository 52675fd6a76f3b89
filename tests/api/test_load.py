"""What is in memory: load, unload, `preload` and Ollama's `keep_alive`, on the real engine and the real test model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from gateway.app import build
from gateway.config import Config, Model, Residence, Runtime, Server
from gateway.core import Gateway
from gateway.engines import Engine
from gateway.server.keys import FILE, KeyFile, wanted
from tests.backends.ollama_double import OllamaDouble
from tests.gateway.running import FAST, NO_COMMENTS
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.provider.server import serve

ASK = {"messages": [{"role": "user", "content": "Say hello."}], "stream": False}
Client = httpx.Client


@pytest.fixture
def serving(test_model: Path, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Starts a gateway with the model `tiny`, whose residence is given, `vectors`, `echo`, and `far`, another's
    server."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    with ExitStack() as stack:

        def start(**residence: Any) -> Client:
            tiny = Model(
                name="tiny",
                runtime="llama.cpp",
                path=test_model,
                context_window=512,
                tool_call_format="pythonic",
                defaults={"temperature": 0, "max_tokens": 8},
                engine=Runtime(threads=1, parallel=1),
                residence=Residence(**residence),
            )
            vectors = Model(
                name="vectors",
                runtime="llama.cpp",
                role="embedding",
                path=test_model,
                context_window=512,
                engine=Runtime(threads=1, parallel=1),
            )
            far = Model(name="far", runtime="openai", base_url=f"http://127.0.0.1:{free_port()}")
            config = Config(
                source=tmp_path / "config.yaml",
                active_model="tiny",
                models={"tiny": tiny, "vectors": vectors, "far": far, "echo": Model(name="echo", runtime="echo")},
                state_dir=tmp_path / "state",
                server=Server(**NO_COMMENTS),
            )
            url = stack.enter_context(serve(build(config), lifespan="on", http=FAST))
            return stack.enter_context(Client(base_url=url, timeout=PATIENCE))

        yield start


def state(client: Client) -> str:
    found: str = client.get("/ready/tiny").json()["state"]
    return found


def engine(client: Client) -> dict[str, Any]:
    models = client.get("/-/status").json()["models"]
    found: dict[str, Any] = next(each["engine"] for each in models if each["name"] == "tiny")
    return found


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def becomes(client: Client, wanted: str) -> None:
    until(lambda: state(client) == wanted)


def test_load_and_unload(serving: Callable[..., Client]) -> None:
    client = serving()
    assert state(client) == "stopped"
    assert client.post("/v1/models/tiny/unload").json() == {"id": "tiny", "state": "stopped", "load_seconds": None}
    loaded = client.post("/v1/models/tiny/load").json()
    assert (loaded["id"], loaded["state"]) == ("tiny", "ready")
    assert loaded["load_seconds"] > 0
    assert client.post("/models/default/unload").json()["state"] == "stopped"
    assert engine(client)["pid"] is None
    assert client.post("/v1/chat/completions", json=ASK).status_code == 200
    assert engine(client)["starts"] == 2


def test_an_unload_waits_for_answers_in_flight(serving: Callable[..., Client]) -> None:
    client = serving(pinned=True)
    long = {**ASK, "stream": True, "max_tokens": 200, "ignore_eos": True}
    with client.stream("POST", "/v1/chat/completions", json=long) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data:")
        with Client(base_url=client.base_url, timeout=PATIENCE) as other:
            assert other.post("/v1/models/tiny/unload").json()["state"] == "stopped"
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_others_servers_load_and_unload_by_themselves(serving: Callable[..., Client]) -> None:
    client = serving()
    for name in ("far", "echo"):
        refused = client.post(f"/v1/models/{name}/unload")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_loadable")
    assert client.post("/v1/models/nobody/load").json()["error"]["code"] == "model_not_found"
    assert client.get("/v1/models/tiny/load").status_code == 404


def test_preload(serving: Callable[..., Client]) -> None:
    client = serving(preload=True)
    becomes(client, "ready")
    assert engine(client)["starts"] == 1


async def test_preload_of_a_changed_file(test_model: Path, tmp_path: Path) -> None:
    """A model that gets the key is loaded, and one whose engine ends by a change is loaded again."""
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    tiny = Model(name="tiny", runtime="llama.cpp", path=test_model, context_window=512, engine=Runtime(threads=1))
    gone = replace(tiny, name="gone", path=tmp_path / "gone.gguf")
    models = {"gone": gone, "tiny": tiny}
    config = Config(source=tmp_path / "c", active_model="tiny", models=models, state_dir=tmp_path)

    async def loaded(gateway: Gateway, model: Model) -> Engine:
        wished = replace(gone, residence=Residence(preload=True))
        gateway.apply(replace(config, models={"gone": wished, "tiny": model}))
        engine = gateway.routes["tiny"].engine
        assert engine is not None
        async with asyncio.timeout(PATIENCE):
            while engine.state != "ready":
                await engine.lifecycle.changed()
        return engine

    async with Gateway(config) as gateway:
        first = await loaded(gateway, replace(tiny, residence=Residence(preload=True)))
        assert await loaded(gateway, replace(tiny, residence=Residence(preload=True, pinned=True))) is first
        assert first.launcher.starts == 1
        second = await loaded(gateway, replace(tiny, context_window=256, residence=Residence(preload=True)))
        assert second is not first


def test_an_idle_model_that_is_loaded_again_stays_from_now_on(serving: Callable[..., Client]) -> None:
    client = serving(idle_ttl_seconds=3600.0)
    assert client.post("/v1/models/tiny/load").json()["state"] == "ready"
    before = client.get("/api/ps").json()["models"][0]["expires_at"]
    time.sleep(0.05)
    assert client.post("/api/generate", json={"model": "tiny", "keep_alive": "1h"}).json()["done_reason"] == "load"
    assert client.get("/api/ps").json()["models"][0]["expires_at"] > before


@pytest.mark.parametrize("body", [{"prompt": ""}, {"messages": []}], ids=["generate", "chat"])
def test_ollama_s_empty_prompt_loads_and_unloads(body: dict[str, Any], serving: Callable[..., Client]) -> None:
    client, path = serving(), "/api/chat" if "messages" in body else "/api/generate"
    loaded = client.post(path, json={"model": "tiny:latest", "keep_alive": -1, **body}).json()
    assert (loaded["done"], loaded["done_reason"], state(client)) == (True, "load", "ready")
    assert client.get("/api/ps").json()["models"][0]["expires_at"].startswith("9999")
    unloaded = client.post(path, json={"model": "tiny", "keep_alive": 0, **body}).json()
    assert (unloaded["done"], unloaded["done_reason"], state(client)) == (True, "unload", "stopped")
    assert client.get("/api/ps").json()["models"] == []


@pytest.mark.parametrize("body", [{}, {"input": ""}, {"input": []}, {"input": None}, {"dimensions": 2}])
@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
def test_a_model_of_vectors_is_loaded_without_a_text(
    path: str, body: dict[str, Any], serving: Callable[..., Client]
) -> None:
    client = serving()
    empty = {"model": "vectors", "embeddings": []} if path == "/api/embed" else {"embedding": []}

    def asked(**keep: Any) -> tuple[Any, str]:
        answer = client.post(path, json={"model": "vectors", **body, **keep})
        return answer.json(), client.get("/ready/vectors").json()["state"]

    assert asked(keep_alive=-1) == (empty, "ready")
    assert client.get("/api/ps").json()["models"][0]["expires_at"].startswith("9999")
    assert asked() == (empty, "ready")
    assert asked(keep_alive=0) == (empty, "stopped")
    for name, status in (("tiny", 400), ("nobody", 404)):
        assert client.post(path, json={"model": name, **body}).status_code == status


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_keep_alive_counts_from_the_end_of_the_answer(path: str, serving: Callable[..., Client]) -> None:
    client = serving()
    body = {"model": "tiny", "stream": False, **(ASK if path == "/api/chat" else {"prompt": "Say hello."})}
    assert client.post(path, json={**body, "keep_alive": "0.2s"}).json()["done"]
    becomes(client, "stopped")
    # It held for that engine: the next one stays.
    assert client.post(path, json=body).json()["done"]
    assert client.get("/api/ps").json()["models"][0]["expires_at"].startswith("9999")
    # The last one that was said counts; a stream says it, too.
    with client.stream("POST", path, json={**body, "stream": True, "keep_alive": "10m"}) as answer:
        assert answer.read()
    assert not client.get("/api/ps").json()["models"][0]["expires_at"].startswith("9999")
    assert client.post(path, json={**body, "keep_alive": 0}).json()["done"]
    becomes(client, "stopped")


async def test_a_model_in_ollama_is_kept_there(tmp_path: Path) -> None:
    """Ollama is told what the client said."""
    double = OllamaDouble({"qwen": ["completion"]})
    bodies: list[dict[str, Any]] = [
        {"keep_alive": "5m", **ASK},
        {"keep_alive": 0, "messages": []},
        {"messages": []},
        ASK,
    ]
    async with double.serve() as at:
        model = Model(name="qwen", runtime="ollama", base_url=f"http://127.0.0.1:{at.port}")
        config = Config(source=tmp_path / "c", active_model="qwen", models={"qwen": model}, state_dir=tmp_path)
        with ExitStack() as stack:
            url = stack.enter_context(serve(build(config), lifespan="on", http=FAST))
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
                for body in bodies:
                    answer = await client.post("/api/chat", json={"model": "qwen", **body})
                    assert answer.json()["done"]
                assert (await client.post("/v1/models/qwen/unload")).json()["state"] is None
            await asyncio.to_thread(stack.close)
    assert [request.get("keep_alive") for request in double.requests] == ["5m", 0, None, None, 0]


def test_who_may_decide(serving: Callable[..., Client], tmp_path: Path) -> None:
    client, file = serving(), KeyFile(tmp_path / "state" / FILE)
    guest = {"authorization": f"Bearer {file.add(scopes=('models',))[1]}"}
    owner = {"authorization": f"Bearer {file.add(scopes=('models', 'operations'))[1]}"}
    until(lambda: client.post("/v1/models/tiny/load").status_code == 401)
    for path in ("/v1/models/tiny/load", "/models/tiny/unload"):
        assert client.post(path, headers=guest).json()["error"]["code"] == "insufficient_scope"
    assert client.post("/v1/models/tiny/load", headers=owner).json()["state"] == "ready"
    unload = {"model": "tiny", "keep_alive": 0}
    assert client.post("/api/generate", json=unload, headers=guest).status_code == 403
    assert client.post("/api/chat", json={"model": "tiny", **ASK, "keep_alive": 0}, headers=guest).json()["done"]
    assert client.get("/ready/tiny", headers=owner).json()["state"] == "ready"
    assert client.post("/api/generate", json=unload, headers=owner).json()["done_reason"] == "unload"


BEHIND = (
    "%0A",
    "%0a",
    "%0D",
    "%0D%0A",
    "%00",
    "%09",
    "%0B",
    "%1F",
    "%7F",
    "%C2%85",
    "%E2%80%A8",
    "%20",
    "/",
    "%2F",
    "//",
)
"""What a guest adds to a path, or to one in the middle of which stands `{}`."""


def test_no_other_spelling_of_a_path_lets_a_guest_decide(serving: Callable[..., Client], tmp_path: Path) -> None:
    client, file = serving(), KeyFile(tmp_path / "state" / FILE)
    guest = {"authorization": f"Bearer {file.add(scopes=('models',))[1]}"}
    until(lambda: client.post("/v1/models/tiny/load").status_code == 401)
    calls = [
        *(("POST", path) for path in ("/v1/models/echo/load", "/models/echo/unload", "/v1/models/echo{}/unload")),
        *(("POST", path) for path in ("{}/api/pull", "/api/pull", "/-/plan", "/{}-/plan", "/llm/room")),
        *(("DELETE", "/api/delete"), ("GET", "/metrics"), ("GET", "/-/status"), ("POST", "/upstream/echo/a")),
        *(("POST", path.replace("a", "A")) for path in ("/api/pull", "/v1/models/echo/unload")),
    ]
    for method, path in calls:
        for more in BEHIND:
            written = path.format(more) if "{}" in path else path + more
            answer = client.request(method, written, headers=guest, content=b'{"model": "echo"}')
            assert answer.status_code in (403, 404, 405), (method, written, answer.text)
            if method == "POST" and "%0" in more:  # nor does it become a request of a model, in the log or elsewhere
                assert answer.status_code == 404, (written, answer.text)
    assert client.post("/v1/chat/completions%0A", headers=guest, json=ASK).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("POST", "/v1/models/a/load", "operations"),
        ("POST", "/models/a/unload", "operations"),
        ("POST", "/api/pull", "operations"),
        ("DELETE", "/api/delete", "operations"),
        ("GET", "/v1/models/a/ready", "models"),
        ("GET", "/v1/models/load", "models"),
        ("POST", "/api/chat", "models"),
    ],
)
def test_scopes(method: str, path: str, scope: str) -> None:
    assert wanted(method, path) == scope

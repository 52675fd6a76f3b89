"""Models whose weights aren't there: no list shows them, and every API says what fetches them."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.api import listing
from gateway.app import build
from gateway.config import Config, Model, PullSource, Runtime, Server
from gateway.core import Gateway
from gateway.engines.launch import weights_missing
from gateway.services import Services
from tests.gateway.double import Double
from tests.gateway.running import FAST, NO_COMMENTS
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.provider.server import serve

PULL = PullSource(kind="hub", name="owner/name")


def configuration(folder: Path) -> Config:
    """Models `gone`, `gone-vectors` and `gone-rerank`, whose files aren't in `folder`, and `echo`."""
    roles: dict[str, Any] = {"gone": "chat", "gone-vectors": "embedding", "gone-rerank": "rerank"}
    gone = [
        Model(
            name=name,
            role=role,
            runtime="llama.cpp",
            path=folder / f"{name}.gguf",
            pull=PULL,
            context_window=512,
            tool_call_format="pythonic",
            engine=Runtime(threads=1, parallel=1),
        )
        for name, role in roles.items()
    ]
    models = {model.name: model for model in (*gone, Model(name="echo", runtime="echo"))}
    return Config(
        source=folder / "config.yaml",
        active_model="echo",
        models=models,
        state_dir=folder / "state",
        server=Server(**NO_COMMENTS),
    )


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with ExitStack() as stack:
        url = stack.enter_context(serve(build(configuration(tmp_path)), lifespan="on", http=FAST))
        yield stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))


def names(client: httpx.Client, path: str) -> list[str]:
    body = client.get(path).raise_for_status().json()
    return [entry["name"] for entry in body["models"]] if "models" in body else [entry["id"] for entry in body["data"]]


HI = [{"role": "user", "content": "Hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi", "store": False},
    "/v1/messages": {"messages": HI, "max_tokens": 9},
    "/api/chat": {"messages": HI},
    "/api/generate": {"prompt": "Hi"},
}
ALSO: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/responses/input_tokens": ("gone", {"input": "Hi"}),
    "/v1/messages/count_tokens": ("gone", {"messages": HI}),
    "/v1/embeddings": ("gone-vectors", {"input": "Hi"}),
    "/v1/rerank": ("gone-rerank", {"query": "Hi", "documents": ["a"]}),
    "/api/embed": ("gone-vectors", {"input": "Hi"}),
    "/api/embeddings": ("gone-vectors", {"prompt": "Hi"}),
    "/api/show": ("gone", {}),
    # Ollama's way to load a model.
    "/api/generate": ("gone", {}),
}


ANTHROPIC = ("error", "not_found_error", "model_not_found")


def refuses(answer: httpx.Response, model: str) -> None:
    """A 404 in the format of the API, with the command that helps, and nothing that asks for a retry."""
    assert answer.status_code == 404, answer.text
    assert "retry-after" not in answer.headers
    body, path = answer.json(), answer.request.url.path
    message = body["error"] if path.startswith("/api/") else body["error"]["message"]
    assert message.endswith(f"{model}.gguf; `ctxgate pull {model}` fetches it")
    if path.startswith("/v1/messages"):
        assert (body["type"], body["error"]["type"], body["error"]["code"]) == ANTHROPIC
    elif path.startswith("/v1"):
        assert (body["error"]["type"], body["error"]["code"]) == ("invalid_request_error", "model_not_found")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ASKED)
def test_every_api_says_what_fetches_it(client: httpx.Client, path: str, stream: bool) -> None:
    refuses(client.post(path, json={"model": "gone", "stream": stream, **ASKED[path]}), "gone")


def test_so_do_its_other_endpoints(client: httpx.Client) -> None:
    for path, (model, body) in ALSO.items():
        refuses(client.post(path, json={"model": model, **body}), model)
    for path in ("/v1/models/gone", "/v1/models/gone/ready"):
        refuses(client.get(path), "gone")
    ready = client.get("/ready/gone")
    assert (ready.status_code, ready.json()["error"]["code"]) == (503, "model_not_found")
    assert "`ctxgate pull gone` fetches it" in ready.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", ["gone", "nobody"])
def test_claude_code_gets_a_status_whose_message_it_shows(client: httpx.Client, model: str, stream: bool) -> None:
    body = {"model": model, "stream": stream, **ASKED["/v1/messages"]}
    plain = client.post("/v1/messages", json=body)
    shown = client.post("/v1/messages", json=body, headers={"user-agent": "claude-cli/2.1.330 (external, cli)"})
    assert (plain.status_code, shown.status_code) == (404, 410)
    assert plain.json() == shown.json()


# Lists


@pytest.mark.parametrize("path", ["/v1/models", "/models/", "/api/tags"])
def test_a_list_shows_what_can_be_served(client: httpx.Client, path: str) -> None:
    every = ["gone", "gone-vectors", "gone-rerank", "echo"]
    assert names(client, path) == ["echo"]
    assert names(client, f"{path}?all=1") == every
    assert names(client, f"{path}?all=false") == ["echo"]
    assert client.get(f"{path}?all=maybe").status_code == 400


def test_what_the_whole_list_says(client: httpx.Client) -> None:
    listed = client.get("/v1/models?all=1").json()["data"]
    assert {entry["id"]: entry["available"] for entry in listed} == {
        "gone": False,
        "gone-vectors": False,
        "gone-rerank": False,
        "echo": True,
    }
    assert client.get("/v1/models/gone?all=1").json() == listed[0]
    assert client.get("/v1/models/echo").json() == listed[-1]


def test_a_list_may_be_empty(tmp_path: Path) -> None:
    gone = Model(name="gone", runtime="llama.cpp", path=tmp_path / "gone.gguf")
    config = Config(source=tmp_path / "config.yaml", active_model="gone", models={"gone": gone}, state_dir=tmp_path)
    with serve(build(config), lifespan="on", http=FAST) as url:
        listed = httpx.get(f"{url}/v1/models", timeout=PATIENCE).json()
        assert listed == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}
        assert httpx.get(f"{url}/api/tags", timeout=PATIENCE).json() == {"models": []}


def test_weights_that_appear_are_served_without_a_restart(
    client: httpx.Client, tmp_path: Path, test_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    body = {"model": "gone", "max_tokens": 2, **ASKED["/v1/chat/completions"]}
    assert client.post("/v1/chat/completions", json=body).status_code == 404
    assert "gone" not in names(client, "/v1/models")
    shutil.copyfile(test_model, tmp_path / "gone.gguf")
    # The request looks for itself; lists may use a look that is a second old.
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    monkeypatch.setattr(listing, "FRESH_SECONDS", 0.0)
    assert names(client, "/v1/models") == ["gone", "echo"]
    (entry,) = [entry for entry in client.get("/api/tags").json()["models"] if entry["name"] == "gone"]
    assert (entry["size"], entry["details"]["format"]) == (test_model.stat().st_size, "gguf")


async def test_a_server_at_the_fixed_port_needs_no_weights(tmp_path: Path) -> None:
    port = free_port()
    here = Model(name="here", runtime="llama.cpp", path=tmp_path / "here.gguf", port=port)
    async with Double().serve() as double:
        there = Model(name="there", runtime="llama.cpp", path=tmp_path / "there.gguf", port=double.address.port)
        elsewhere = Model(name="elsewhere", runtime="openai", base_url="http://127.0.0.1:9")
        models = {model.name: model for model in (here, there, elsewhere)}
        config = Config(source=tmp_path / "config.yaml", active_model="here", models=models, state_dir=tmp_path)
        async with Gateway(config) as gateway:
            seen = await listing.survey(gateway)
            assert [route.model.name for route in seen.listed(all=False)] == ["there", "elsewhere"]
            assert await gateway.routes["there"].server.missing() is None
            assert await gateway.routes["here"].server.missing() is not None


def test_lists_share_one_look_in_a_thread_of_its_own(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[str, int]] = []

    def counted(model: Model) -> object:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        looks.append((model.name, threading.get_ident()))
        return weights_missing(model)

    monkeypatch.setattr(listing, "weights_missing", counted)
    monkeypatch.setattr(listing, "FRESH_SECONDS", PATIENCE)
    paths = ["/v1/models", "/api/tags", "/api/ps", "/v1/models?all=1", "/v1/models/echo"] * 8
    with ThreadPoolExecutor(8) as pool:
        assert {answer.status_code for answer in pool.map(client.get, paths)} == {200}
    assert [name for name, _ in looks] == ["gone", "gone-vectors", "gone-rerank"]
    assert len({thread for _, thread in looks}) == 1


def test_a_disk_that_does_not_answer_holds_up_nothing_but_lists(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    def stuck(model: Model) -> None:
        assert answered.wait(PATIENCE)

    monkeypatch.setattr(listing, "weights_missing", stuck)
    monkeypatch.setattr(listing, "SURVEY_SECONDS", 0.05)
    try:
        for path in ("/v1/models", "/api/tags", "/v1/models"):
            assert client.get(path).status_code == 503
        body = {"model": "echo", **ASKED["/v1/chat/completions"]}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
    finally:
        answered.set()


async def test_a_reload_is_listed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "FRESH_SECONDS", PATIENCE)
    before = configuration(tmp_path)
    async with Gateway(before) as gateway:
        shared = listing.Listing(Services(gateway))
        assert (await shared.survey()).available == {"echo"}
        echoes = {name: Model(name=name, runtime="echo") for name in ("echo", "other")}
        gateway.apply(Config(source=before.source, active_model="echo", models=echoes, state_dir=tmp_path))
        assert (await shared.survey()).available == {"echo", "other"}
        await shared.aclose()

"""`service_tier` on every API: what a request asks for, what it gets, what the answer says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gateway.app import build
from gateway.config import Config, Model, load
from gateway.config.problems import ConfigError
from gateway.features.keys.words import parse
from gateway.server.keys import FILE, KeyFile
from gateway.wire.chat import with_tier
from gateway.wire.limits import Tier
from tests.gateway.running import FAST
from tests.patience import PATIENCE
from tests.provider.server import serve

SAY: dict[str, Any] = {"messages": [{"role": "user", "content": "one two three"}]}
TIERS: dict[str, Tier] = {"urgent": "priority", "nightly": "flex"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tiers")
    file = KeyFile(folder / FILE)
    limits = {"free": (), "flex": ("tier=flex",), "calm": ("tiers=default,flex",), "slow": ("tiers=flex",)}
    return {"": str(folder)} | {
        name: file.add(scopes=["models"], limits=parse(given))[1] for name, given in limits.items()
    }


@pytest.fixture(scope="module")
def url(keys: dict[str, str]) -> Iterator[str]:
    model = Model(name="echo", runtime="echo", aliases=("urgent", "nightly"), tiers=TIERS)
    state = Path(keys[""])
    config = Config(source=state / "config.yaml", active_model="echo", models={"echo": model}, state_dir=state)
    with serve(build(config), lifespan="on", http=FAST) as url:
        yield url


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as http:
        yield http


async def tier_of(http: httpx.AsyncClient, key: str, **body: Any) -> Any:
    head = {"authorization": f"Bearer {key}"}
    answer = await http.post("/v1/chat/completions", json={"model": "echo", **SAY, **body}, headers=head)
    return answer.json().get("service_tier") if answer.status_code == 200 else answer.status_code


@pytest.mark.parametrize(
    ("key", "model", "wanted", "got"),
    [
        ("free", "echo", None, None),
        ("free", "echo", "auto", "default"),
        ("free", "echo", "flex", "flex"),
        ("free", "echo", "priority", "priority"),
        ("free", "echo", "default", "default"),
        ("free", "echo", "on_demand", "default"),  # another server's own
        ("free", "nightly", None, "flex"),
        ("free", "nightly", "auto", "flex"),
        ("free", "nightly", "default", "default"),
        ("free", "urgent", None, "priority"),
        ("flex", "echo", None, "flex"),
        ("flex", "urgent", None, "priority"),  # the name says more than the key
        ("flex", "echo", "default", "default"),
        ("calm", "echo", "priority", 403),
        ("calm", "urgent", None, None),  # its default isn't allowed
        ("calm", "nightly", None, "flex"),
        ("slow", "echo", None, "flex"),
        ("slow", "echo", "default", 403),
    ],
)
async def test_who_decides(
    http: httpx.AsyncClient, keys: dict[str, str], key: str, model: str, wanted: str | None, got: Any
) -> None:
    more = {} if wanted is None else {"service_tier": wanted}
    assert await tier_of(http, keys[key], model=model, **more) == got


async def test_a_tier_that_is_no_text_is_refused(http: httpx.AsyncClient, keys: dict[str, str]) -> None:
    for path, body in (("/v1/chat/completions", SAY), ("/v1/completions", {"prompt": "a"})):
        head = {"authorization": f"Bearer {keys['free']}"}
        refused = await http.post(path, json={**body, "model": "echo", "service_tier": 5}, headers=head)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "service_tier")


def test_openais_client_sees_it(url: str, keys: dict[str, str]) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=keys["free"], max_retries=0) as client:
        whole = client.chat.completions.create(model="echo", messages=SAY["messages"], service_tier="flex")
        assert whole.service_tier == "flex"
        assert whole.choices[0].message.content == "one two three"
        chunks = list(
            client.chat.completions.create(model="echo", messages=SAY["messages"], service_tier="flex", stream=True)
        )
        assert {chunk.service_tier for chunk in chunks} == {"flex"}
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"
        response = client.responses.create(model="echo", input="Hi", service_tier="priority", store=False)
        assert response.service_tier == "priority"
        assert client.responses.create(model="echo", input="Hi", store=False).service_tier == "default"
        with client.responses.stream(model="echo", input="Hi", service_tier="flex", store=False) as stream:
            assert {
                event.response.service_tier
                for event in stream
                if event.type in ("response.created", "response.completed")
            } == {"flex"}


def test_anthropics_client_sees_its_own_names(url: str, keys: dict[str, str]) -> None:
    with anthropic.Anthropic(base_url=url, api_key=keys["free"], max_retries=0) as client:

        def tier(model: str, **more: Any) -> Any:
            return client.messages.create(
                model=model, max_tokens=9, messages=SAY["messages"], **more
            ).usage.service_tier

        assert tier("echo") is None
        assert tier("echo", service_tier="auto") == "standard"
        assert tier("urgent", service_tier="auto") == "priority"
        assert tier("urgent", service_tier="standard_only") == "standard"
        assert tier("nightly") == "batch"
        with client.messages.stream(model="urgent", max_tokens=9, messages=SAY["messages"]) as stream:
            assert stream.get_final_message().usage.service_tier == "priority"
        with pytest.raises(anthropic.BadRequestError, match="service_tier"):
            tier("echo", service_tier="flex")


async def test_ollamas_api_takes_the_field_too(http: httpx.AsyncClient, keys: dict[str, str]) -> None:
    head = {"authorization": f"Bearer {keys['calm']}"}
    body = {"model": "echo", "stream": False, **SAY}
    assert (await http.post("/api/chat", json={**body, "service_tier": "flex"}, headers=head)).status_code == 200
    refused = await http.post("/api/chat", json={**body, "service_tier": "priority"}, headers=head)
    assert (refused.status_code, "may not ask for service_tier" in refused.text) == (403, True)


async def test_every_answer_of_ollamas_api_names_it(http: httpx.AsyncClient, keys: dict[str, str]) -> None:
    head = {"authorization": f"Bearer {keys['free']}"}
    for path, body in (("/api/chat", SAY), ("/api/generate", {"prompt": "a"})):
        for stream in (True, False):
            asked = {"model": "echo", "stream": stream, **body}
            for wanted in ("flex", "priority", None):
                more = {} if wanted is None else {"service_tier": wanted}
                answer = await http.post(path, json={**asked, **more}, headers=head)
                last = json.loads(answer.text.splitlines()[-1])
                assert (answer.status_code, last["done"], last.get("service_tier")) == (200, True, wanted)


async def test_vectors_name_it(real: str) -> None:
    async with httpx.AsyncClient(base_url=real, timeout=PATIENCE) as http:
        rerank = {"query": "a", "documents": ["a", "b"]}
        for path, body in (
            ("/v1/embeddings", {"input": "a"}),
            ("/v1/rerank", rerank),
            ("/api/embed", {"input": "a"}),
            ("/api/embeddings", {"prompt": "a"}),
            ("/api/generate", {"prompt": "a", "raw": True, "stream": False, "options": {"num_predict": 2}}),
        ):
            model = "tiny" if "generate" in path else "vectors"
            for wanted, got in ((None, None), ("auto", "default"), ("flex", "flex")):
                more = {} if wanted is None else {"service_tier": wanted}
                answer = await http.post(path, json={"model": model, **body, **more})
                assert (path, answer.status_code, answer.json().get("service_tier")) == (path, 200, got)
    with openai.OpenAI(base_url=f"{real}/v1", api_key="-", max_retries=0) as client:
        found = client.embeddings.create(model="vectors", input="a", extra_body={"service_tier": "flex"})
        assert found.model_extra is not None
        assert found.model_extra["service_tier"] == "flex"


def test_a_tier_that_a_server_named_stays() -> None:
    assert json.loads(with_tier(b' {"id":"a"}', "flex")) == {"service_tier": "flex", "id": "a"}
    assert with_tier(b'{"service_tier":"scale"}', "flex") == b'{"service_tier":"scale"}'
    assert json.loads(with_tier(b'{"id":"a","service_tier":null}', "flex")) == {"service_tier": "flex", "id": "a"}
    nested = b'{"usage":{"service_tier":"standard"}}'
    assert json.loads(with_tier(nested, "flex")) == {"service_tier": "flex", "usage": {"service_tier": "standard"}}


def test_config(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = "active_model: m\nmodels:\n  m: {{runtime: echo, aliases: [n], service_tier: {}}}\n"
    for written, tiers in (("flex", {"m": "flex", "n": "flex"}), ("{n: priority}", {"n": "priority"})):
        file.write_text(text.format(written))
        assert load(file).models["m"].tiers == tiers
    file.write_text(text.format("{x: flex}"))
    with pytest.raises(ConfigError, match=r"models.m.service_tier: x is neither the model's name nor an alias of it"):
        load(file)
    file.write_text(text.format("fast"))
    with pytest.raises(ConfigError, match="allowed: priority, default, flex"):
        load(file)

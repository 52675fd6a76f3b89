"""Only web pages of the configured origins may use the gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from gateway.app import build
from gateway.config import Config, Model, Server
from gateway.server import access
from tests.gateway.running import FAST
from tests.patience import PATIENCE
from tests.provider.server import serve

APP = "https://app.example"
CHAT = {"messages": [{"role": "user", "content": "one two"}]}


@contextmanager
def gateway(*origins: str, http: str = FAST) -> Iterator[httpx.Client]:
    config = Config(
        source=Path("config.yaml"),
        active_model="echo",
        models={"echo": Model(name="echo", runtime="echo")},
        server=Server(cors_origins=origins, api_keys=(SecretStr("sk-test"),)),
    )
    with ExitStack() as stack:
        url = stack.enter_context(serve(build(config), lifespan="on", http=http))
        key = {"authorization": "Bearer sk-test"}
        yield stack.enter_context(httpx.Client(base_url=url, headers=key, timeout=PATIENCE))


ORIGINS: dict[str, tuple[tuple[str, ...], str, bool]] = {
    "named": ((APP,), APP, True),
    "one of two": (("http://localhost:3000", APP), APP, True),
    "another": ((APP,), "https://evil.example", False),
    "the same host, another port": ((APP,), f"{APP}:8443", False),
    "any": (("*",), "https://anything.example", True),
    "none is named": ((), APP, False),
}


@pytest.mark.parametrize("http", [FAST, "httptools"], ids=["fast", "asgi"])
@pytest.mark.parametrize("name", ORIGINS)
def test_origins(name: str, http: str) -> None:
    origins, origin, allowed = ORIGINS[name]
    with gateway(*origins, http=http) as client:
        for path in ("/v1/chat/completions", "/v1/responses"):
            before = client.options(
                path,
                headers={
                    "origin": origin,
                    "access-control-request-method": "POST",
                    "access-control-request-headers": "authorization, content-type",
                    "authorization": "",
                },
            )
            answer = client.post(
                path, headers={"origin": origin}, json={**CHAT, "input": "one two", "store": False, "stream": True}
            )
            if not allowed:
                assert [before.status_code, answer.status_code] == [403, 403]
                assert answer.json()["error"]["code"] == "origin_not_allowed"
                assert "server.cors_origins" in answer.json()["error"]["message"]
            else:
                assert answer.status_code == 200
                assert "one" in answer.text
                assert before.status_code == 200
                assert before.headers["access-control-allow-headers"] == "authorization, content-type"
                assert "DELETE" in before.headers["access-control-allow-methods"]
            for one in (before, answer):
                granted = "*" if origins == ("*",) else origin
                assert one.headers.get("access-control-allow-origin") == (granted if allowed else None)


def test_errors_can_be_read_by_the_page() -> None:
    with gateway(APP) as client:
        answer = client.post("/v1/chat/completions", headers={"origin": APP, "authorization": "Bearer no"}, json=CHAT)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, APP)
        assert "access-control-allow-origin" not in client.get("/v1/models").headers


def test_pages_may_read_every_header() -> None:
    sources = [file.read_text("utf-8") for file in Path(access.__file__).parents[1].rglob("*.py")]
    told = {name for text in sources for name in re.findall(r"x-ctxgate-[a-z-]+", text)}
    assert told
    assert told <= {*access.EXPOSED}

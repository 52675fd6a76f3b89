"""What came from a variable or the keychain reaches its engine, and no file, no other process, no log and no answer."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import psutil
import pytest

from gateway.config.build import PUBLIC
from tests.conftest import ROOT
from tests.gateway.double import Exchange, completion
from tests.hostile.conftest import Unharmed
from tests.hostile.running import Answer, Gateway, Upstream, configuration, polite, started, warm
from tests.patience import PATIENCE
from tests.rooms.running import calls, speaks

Json = dict[str, Any]

KEY = "planted-key-of-callers"
AUTH = {"Authorization": f"Bearer {KEY}"}
KEYCHAIN = """
from tests.ctx.keychain import Memory

class Planted(Memory):
    def __init__(self):
        super().__init__({("ctxgate", "mine"): "planted-secret-keychain", ("ctxgate", "calling"): "planted-caller"})
"""
"""A backend of keyring, as PYTHON_KEYRING_BACKEND names one."""
BUSY = ("active", "releasing")
PLACES = (
    *("api_key", "extra_body", "force_params", "strip_params", "stop", "args", "base_url", "replicas", "providers"),
    *("api_keys", "store", "url", "object", "env", "headers", "traces", "share"),
)
"""Keys of the file where a secret is planted below, by a variable of its own."""

OTHERS = {
    **dict.fromkeys(
        (
            "tool_prompt",
            "tool_wording",
            "enforcement",
            "session",
            "call_deltas",
            "save",
            "share_prefixes",
            "keep_reasoning",
        ),
        "one of a few words",
    ),
    **dict.fromkeys(("excludes", "aliases", "allowed_hosts", "public_hosts", "users"), "names"),
    "models": "names",
    "model_path": "another spelling of path",
    "groups": "names",
    "runtimes": "names",
    "enabled": "yes or no",
    **dict.fromkeys(("access", "after_turn"), "one of a few words"),
    **dict.fromkeys(("allow", "deny", "mounts", "provider", "skills", "tenants"), "names"),
    **dict.fromkeys(("cert", "key"), "a file's path"),
    **dict.fromkeys(("description", "instructions", "prompt", "purpose"), "what callers and models are told"),
}
"""Keys whose values no secret can be, and why."""


def planted(place: str) -> str:
    return f"planted-secret-{place}"


def configured(upstream: Upstream, folder: Path, test_model: Path) -> Json:
    config = configuration(upstream, folder, test_model)
    address = config["models"]["m"]["base_url"]
    models = config["models"]
    models["m"] |= {
        "api_key": "${PLANTED_API_KEY}",
        "extra_body": {"provider": {"headers": {"Authorization": "Bearer ${PLANTED_EXTRA_BODY}"}}, "seen": [1]},
        "force_params": {"user": {"is": ["${PLANTED_FORCE_PARAMS}"]}},
        "strip_params": ["${PLANTED_STRIP_PARAMS}"],
        "stop": ["${PLANTED_STOP}"],
        "base_url": f"{address}/${{PLANTED_BASE_URL}}",
    }
    models["gone"] = {"runtime": "openai", "base_url": "http://127.0.0.1:9/${PLANTED_BASE_URL}"}
    models["many"] = {"runtime": "openai", "replicas": [f"{address}/${{PLANTED_REPLICAS}}", "http://127.0.0.1:9/b"]}
    models["kept"] = {"runtime": "openai", "base_url": address, "api_key": "keychain:mine"}
    models["broken"] = {"runtime": "llama.cpp", "path": str(test_model), "args": ["--${PLANTED_ARGS}"]}
    models["tiny"] |= {"pass_env": ["WANTED"]}
    config["server"] = {"api_keys": ["${PLANTED_API_KEYS}", "keychain:calling"]}
    config["rooms"] = {
        "providers": {"p": f"{address}/${{PLANTED_PROVIDERS}}", "gone": "http://127.0.0.1:9/${PLANTED_PROVIDERS}"},
        "tools": {"allow_hosts": [f"127.0.0.1:{upstream.port}"]},
    }
    config["store"] = f"sqlite:///{folder}/state/store.db?${{PLANTED_STORE}}=1"
    config["prompts"] = {"share": "memory://${PLANTED_SHARE}/prompts"}
    config["ctx"] = {"enabled": True, "root": str(folder / "ctx")}
    config["log"] = {"bodies": False, "level": "debug", "traces": "http://127.0.0.1:9/${PLANTED_TRACES}"}
    config["mcp"] = {
        "servers": {
            "far": {"url": "http://127.0.0.1:9/", "headers": {"Authorization": "Bearer ${PLANTED_HEADERS}"}},
            "near": {"command": f"{sys.executable} -m no_such_server", "env": {"TOKEN": "${PLANTED_ENV}"}},
        }
    }
    return config


@pytest.fixture(scope="module")
def gateway(scripted: Upstream, test_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    pytest.importorskip("xllamacpp")
    pytest.importorskip("keyring")
    folder, elsewhere = tmp_path_factory.mktemp("g"), tmp_path_factory.mktemp("keychain")
    (elsewhere / "keychain_of_the_test.py").write_text(KEYCHAIN)
    variables = {f"PLANTED_{place.upper()}": planted(place) for place in PLACES}
    variables |= {"PLANTED_API_KEYS": KEY, "PLANTED_STORE": "timeout", "WANTED": "passed on"}
    variables |= {"OPENAI_API_KEY": planted("unrelated"), "HF_TOKEN": planted("unrelated")}
    variables |= {"PYTHONPATH": f"{elsewhere}{os.pathsep}{ROOT}"}
    variables |= {"PYTHON_KEYRING_BACKEND": "keychain_of_the_test.Planted"}
    with started(folder, configured(scripted, folder, test_model), **variables) as running:
        scripted.script = polite
        warm(running, AUTH)
        # The SDK that this loads isn't growth either.
        deadline = time.monotonic() + PATIENCE
        while (log := (folder / "log").read_text("utf-8")).count("no objects for the tools of the MCP server") < 2:
            assert time.monotonic() < deadline, log
            time.sleep(0.05)
        yield running


async def indiscreet(exchange: Exchange) -> None:
    """A script: refuses, and quotes all that it got."""
    if not exchange.body or "refuse" not in exchange.body.decode():
        await exchange.whole(completion())
        return
    said = json.dumps({"path": exchange.path, "headers": exchange.headers, "body": exchange.json})
    if exchange.json.get("stream"):
        await exchange.start()
        await exchange.event({"error": {"message": said}})
        await exchange.end()
    else:
        await exchange.whole({"error": {"message": said}}, 401)


def files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path, path.read_bytes()


def is_silent(gateway: Gateway, said: list[Answer], *more: str) -> None:
    """No answer, no file and no log holds what is planted."""
    secrets = [planted(place).encode() for place in (*PLACES, "unrelated", "keychain", *more)]
    secrets += [KEY.encode(), b"planted-caller"]
    for answer in said:
        assert [secret for secret in secrets if secret in answer.body] == [], answer.body.decode()
        assert not any(secret.decode() in str(answer.headers) for secret in secrets), answer
    for path, content in files(gateway.folder):
        assert not any(secret in content for secret in secrets), path


def test_secrets_stay_where_they_belong(gateway: Gateway, upstream: Upstream, unharmed: Unharmed) -> None:
    upstream.script = indiscreet
    auth = AUTH
    said = [gateway.chat("Hi", auth)]
    sent = upstream.double.requests[-1]
    assert sent.headers["authorization"] == f"Bearer {planted('api_key')}"
    assert sent.path.startswith(f"/{planted('base_url')}/")
    assert sent.json["provider"]["headers"]["Authorization"] == f"Bearer {planted('extra_body')}"
    assert sent.json["user"] == {"is": [planted("force_params")]}

    said.append(gateway.chat("Hi", {"Authorization": "Bearer planted-caller"}, model="kept"))
    assert said[-1].status == 200
    assert upstream.double.requests[-1].headers["authorization"] == f"Bearer {planted('keychain')}"

    with unharmed(gateway):
        for model in ("m", "kept", "gone", "many", "broken", "tiny", "echo"):
            said.append(gateway.chat("Please refuse", auth, model=model))
            said.append(gateway.chat("Please refuse", auth, model=model, stream=True))
            said.append(gateway.ask("POST", "/api/show", {"model": model}, auth))
            said.append(gateway.ask("GET", f"/v1/models/{model}", None, auth))
    assert b"[secret]" in gateway.chat("Hi", auth, model="broken").body
    paths = gateway.ask("GET", "/openapi.json", None, auth).json["paths"]
    said += [gateway.ask("GET", path, None, auth) for path, ways in paths.items() if "get" in ways and "{" not in path]
    said += [gateway.ask("GET", path, None, auth) for path in ("/-/status", "/-/requests", "/metrics", "/api/tags")]
    file = gateway.folder / "config.yaml"
    file.write_text(file.read_text("utf-8").replace('"seen": [1]', '"seen": [2]'), "utf-8")
    said += [gateway.ask("POST", f"/-/reload{ask}", None, auth) for ask in ("?dry_run=true", "")]
    assert said[-1].status == 200, said[-1]

    assert (gateway.folder / "ctx/model").is_dir()
    is_silent(gateway, said)


def turn(gateway: Gateway, content: str, said: list[Answer], **settings: Any) -> Json:
    """A turn of a new room; its history."""
    room = gateway.ask("POST", "/llm/room", {"tool_policy": {"access": "full"}, **settings}, AUTH).json["data"]["id"]
    said.append(gateway.ask("POST", f"/llm/room/{room}/messages", {"content": content}, AUTH))
    assert said[-1].status == 202, said[-1]
    deadline = time.monotonic() + PATIENCE
    while (shown := gateway.ask("GET", f"/llm/room/{room}", None, AUTH)).json["data"]["status"] in BUSY:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    said += [shown, gateway.ask("GET", f"/llm/room/{room}/history?limit=1000", None, AUTH)]
    history: Json = said[-1].json["data"]
    return history


def test_rooms_keep_secrets(gateway: Gateway, upstream: Upstream, unharmed: Unharmed) -> None:
    """A user's key, which its provider quotes; the address of one that isn't there; what a tool is called with."""
    pytest.importorskip("cryptography")
    said: list[Answer] = []

    async def calling(exchange: Exchange) -> None:
        if exchange.path == "/page" or exchange.json["messages"][-1]["role"] == "tool":
            await (exchange.whole({}) if exchange.path == "/page" else speaks("Done.")(exchange))
            return
        headers = {"X-Api-Key": planted("header"), "Cookie": planted("header")}
        url = f"http://user:{planted('password')}@127.0.0.1:{upstream.port}/page"
        await calls(("curl_get", {"url": url, "headers": headers}))(exchange)

    for provider in ("p", "gone"):
        secret = {"name": provider, "value": planted("user"), "kind": "api_key", "metadata": {"provider": provider}}
        said.append(gateway.ask("POST", "/api/user/secrets", secret, AUTH))
        assert said[-1].status == 201, said[-1]
    with unharmed(gateway):
        upstream.script = indiscreet
        turn(gateway, "Please refuse", said, agents=[{"provider": "p", "model": "big"}])
        assert upstream.double.requests[-1].headers["authorization"] == f"Bearer {planted('user')}"
        turn(gateway, "Hi", said, agents=[{"provider": "gone", "model": "big"}])
        upstream.script = calling
        history = turn(gateway, "Hi", said)
    assert "tool:result" in [event["event_type"] for event in history["events"]], history
    assert "[redacted]" in json.dumps(history)
    said += [gateway.ask("GET", path, None, AUTH) for path in ("/api/user/secrets", "/llm/room", "/-/requests")]
    is_silent(gateway, said, "user", "header", "password")


def test_child_processes_get_no_secrets(gateway: Gateway, unharmed: Unharmed) -> None:
    checked = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    with unharmed(gateway):
        assert gateway.chat("Hi", AUTH, model="tiny").status == 200
        assert gateway.chat("Hi", AUTH, response_format=checked).status == 422
    children = psutil.Process(gateway.pid).children(recursive=True)
    named = {" ".join(child.cmdline()): child for child in children}
    assert any("gateway.schema.worker" in line for line in named)
    engines = [child for line, child in named.items() if "xllamacpp_server.py" in line]
    for child in children:
        environ = child.environ()
        assert not any("planted" in value for value in environ.values()), (child.cmdline(), environ)
        assert not any("KEY" in name or "TOKEN" in name for name in environ), child.cmdline()
        assert Path(child.cwd()) != Path(psutil.Process(gateway.pid).cwd())
    assert engines
    for engine in engines:
        assert engine.environ()["WANTED"] == "passed on"
        assert engine.environ()["PATH"] == os.environ["PATH"]
        assert Path(engine.cwd()).is_relative_to(gateway.folder / "state")


def names(schema: Any) -> Iterator[str]:
    """The keys whose values may be any text."""
    if isinstance(schema, dict):
        for name, inner in schema.get("properties", {}).items():
            kinds = {kind for kind in ("string", "integer", "number", "boolean") if f'"{kind}"' in json.dumps(inner)}
            if "string" in kinds and not kinds & {"integer", "number", "boolean"}:
                yield name
        for inner in schema.values():
            yield from names(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from names(inner)


def test_every_key_of_the_file_is_considered() -> None:
    schema = json.loads((ROOT / "_models/config.schema.json").read_text("utf-8"))
    assert sorted({*names(schema)} - PUBLIC - {*PLACES} - OTHERS.keys()) == []


ODD = "sk-ab/cd+ef/0123456789"
QUOTED: dict[str, str] = {
    "as it is": ODD,
    "as PHP writes it": ODD.replace("/", "\\/"),
    "with a code": ODD.replace("+", "\\u002b"),
    "in codes alone": "".join(f"\\u{ord(char):04X}" for char in ODD),
    "in JSON within JSON": json.dumps(ODD.replace("/", "\\/"))[1:-1],
    "in a URL": quote(ODD, safe=""),
    "in a URL, small": quote(ODD, safe="").lower(),
    "in a URL within a URL": quote(quote(ODD, safe=""), safe=""),
}
ASKED: dict[str, Json] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi"},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/tokenize": {"content": "Hi"},
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "/upstream/m/v1/models": {},
}
UNSTREAMED = ("/v1/tokenize", "/upstream/m/v1/models")


def test_a_key_is_hidden_however_its_server_quotes_it(upstream: Upstream, tmp_path: Path) -> None:
    said: list[str] = []

    async def quoting(exchange: Exchange) -> None:
        body = b'{"error": {"message": "Incorrect key: %b", "code": "no"}}' % said[-1].encode()
        if b'"stream":true' in exchange.body:
            await exchange.start()
            await exchange.event(body)
            await exchange.end()
        else:
            await exchange.whole(body, status=401)

    model = {"runtime": "openai", "base_url": f"http://127.0.0.1:{upstream.port}", "api_key": "${ODD}"}
    config = {"active_model": "m", "models": {"m": model}, "state_dir": str(tmp_path / "state")}
    upstream.script = quoting
    with started(tmp_path, config, ODD=ODD) as running:
        for name, written in QUOTED.items():
            said.append(written)
            for path, body in ASKED.items():
                for stream in (False,) if path in UNSTREAMED else (False, True):
                    answer = running.ask("POST", path, {"model": "m", **body, "stream": stream})
                    text = answer.body.decode()
                    for _ in range(3):
                        assert ODD not in unquote(text).replace("\\/", "/"), (name, path, answer)
                        text = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), unquote(text))
                        text = text.replace("\\", "")
                    assert "[secret]" in text, (name, path, answer)
        assert ODD not in running.log()

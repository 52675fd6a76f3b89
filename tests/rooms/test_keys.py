"""API keys: made, listed, revoked, and what each may do at the gateway's door."""

from __future__ import annotations

import hmac
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from pydantic import SecretStr

from gateway.api.entry import API
from gateway.config import Config, Model, Server
from gateway.core import Gateway
from gateway.errors import GatewayError, ProviderAuthentication, ProviderUnavailable
from gateway.server.keys import FILE, POLL_SECONDS, KeyFile, Keyring, wanted
from gateway.server.principal import LOCAL, Principal
from gateway.services import Services
from tests.cli.commands import config, ctxgate, environment
from tests.patience import PATIENCE


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "state" / "keys.json")


def keyring(file: KeyFile, *fixed: str, always: bool = False, clock: Clock | None = None) -> Keyring:
    return Keyring(fixed, LOCAL, file, always=always, now=clock or Clock())


def test_a_key_stands_for_its_principal(file: KeyFile) -> None:
    _, ann = file.add(tenant="acme", user="ann", scopes=["rooms"])
    _, bob = file.add(tenant="other", user="bob")
    ring = keyring(file, "of the file")
    assert ring.principal(ann.encode()) == Principal("acme", "ann", frozenset({"rooms"}))
    assert ring.principal(bob.encode()) == Principal("other", "bob", frozenset({"*"}))
    assert ring.principal(b"of the file") is LOCAL
    for wrong in (None, b"", b"wrong", ann[:-1].encode(), "größer".encode()):
        with pytest.raises(ProviderAuthentication):
            ring.principal(wrong)


def test_the_file_holds_only_digests_and_is_private(file: KeyFile) -> None:
    keys = [file.add()[1] for _ in range(3)]
    assert len(set(keys)) == 3
    written = file.path.read_text("utf-8")
    assert not [key for key in keys if key in written or key.removeprefix("ctxgate_") in written]
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert sorted(left.name for left in file.path.parent.iterdir()) == ["keys.json", "keys.lock"]


def test_a_full_disk_is_an_error_that_changes_nothing(tmp_path: Path) -> None:
    """No file may grow, as on a full disk; the key that was there before goes on."""
    config(tmp_path, f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nstate_dir: {tmp_path / 'state'}\n")
    assert ctxgate("keys", "add", cwd=tmp_path).returncode == 0
    before = (tmp_path / "state/keys.json").read_bytes()
    id = json.loads(before)["keys"][0]["id"]
    assert ctxgate("keys", "ls", cwd=tmp_path).stdout.splitlines()[1].startswith(id)
    for command in ("add", f"revoke {id}"):
        done = subprocess.run(
            ["sh", "-c", f"ulimit -f 0; exec {sys.executable} -m gateway keys {command}"],
            cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (ProviderUnavailable.exit_code, "")
        assert "keys.json can't be written, no key has changed: File too large" in done.stderr
        assert "Traceback" not in done.stderr
        assert (tmp_path / "state/keys.json").read_bytes() == before


def test_every_key_is_compared_whole_in_constant_time(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [file.add()[1] for _ in range(4)]
    ring = keyring(file, "a")
    seen: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        seen.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    for key in (keys[0], keys[3]):
        ring.principal(key.encode())
    with pytest.raises(ProviderAuthentication):
        ring.principal(b"x" * 100)
    assert [sizes for sizes in seen if sizes == (32, 32)] == [(32, 32)] * 15
    whole = len(keys[0])
    assert [sizes for sizes in seen if sizes != (32, 32)] == [(whole, whole), (100, whole)]
    seen.clear()
    ring.principal(keys[3].encode())
    assert seen == [(whole, whole)], "the key that came last needs no digest"


def test_a_new_key_works_at_once_and_a_revoked_one_ends_within_a_second(file: KeyFile) -> None:
    clock = Clock()
    first, key = file.add()
    ring = keyring(file, clock=clock)
    _, second = file.add()
    assert ring.principal(second.encode())
    assert ring.principal(key.encode())
    file.revoke(first.id)
    clock.now += POLL_SECONDS
    with pytest.raises(ProviderAuthentication):
        ring.principal(key.encode())


def test_a_server_that_asked_for_keys_goes_on_asking(file: KeyFile) -> None:
    clock = Clock()
    ring = keyring(file, clock=clock)
    assert ring.principal(None) is LOCAL
    only, _ = file.add()
    clock.now += POLL_SECONDS
    for step in (lambda: None, lambda: file.revoke(only.id), file.path.unlink):
        step()
        clock.now += POLL_SECONDS
        with pytest.raises(ProviderAuthentication):
            ring.principal(None)


def test_a_public_server_requires_a_key(file: KeyFile) -> None:
    with pytest.raises(ProviderAuthentication):
        keyring(file, always=True).principal(None)


ENTRY = {"id": "a", "tenant": "t", "user": "u", "scopes": ["*"], "created_at": "x", "digest": "not hexadecimal"}


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"keys": 1}', '{"keys": [{"id": 1}]}', "\xff", json.dumps({"keys": [ENTRY]})]
)
def test_a_broken_file_refuses_everybody_until_it_is_repaired(file: KeyFile, content: str) -> None:
    clock, (_, key) = Clock(), file.add()
    whole, running = file.path.read_bytes(), keyring(file, "fixed", clock=clock)
    file.path.write_text(content, encoding="latin-1")
    clock.now += POLL_SECONDS
    for ring in (running, keyring(file, "fixed", clock=clock)):
        for given in (key.encode(), b"fixed", None, key.encode()):
            with pytest.raises(ProviderUnavailable, match=r"keys\.json"):
                ring.principal(given)
    file.path.write_bytes(whole)
    assert running.principal(key.encode()).tenant == "local"


def test_a_folder_that_nobody_may_read_refuses_everybody(file: KeyFile, tmp_path: Path) -> None:
    clock, (_, key) = Clock(), file.add()
    ring = keyring(file, clock=clock)
    file.path.parent.rename(tmp_path / "away")
    file.path.parent.write_text("not a folder")
    clock.now += POLL_SECONDS
    with pytest.raises(ProviderUnavailable, match=r"keys\.json"):
        ring.principal(key.encode())


def served(folder: Path, *fixed: str) -> tuple[Gateway, API]:
    models = {"e": Model(name="e", runtime="echo")}
    server = Server(api_keys=tuple(map(SecretStr, fixed)))
    config = Config(source=folder / "x", active_model="e", models=models, server=server, state_dir=folder)
    gateway = Gateway(config)
    return gateway, API(Services(gateway))


async def test_a_reload_opens_no_server_that_asked_for_keys(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / FILE)
    only, key = file.add()
    gateway, api = served(tmp_path)
    assert api.authenticate([(b"authorization", f"Bearer {key}".encode())]) == only.principal
    file.revoke(only.id)
    for size in (1025, 1026):
        gateway.apply(replace(gateway.config, server=Server(max_body_bytes=size)))
        with pytest.raises(ProviderAuthentication):
            api.authenticate([])


async def test_nor_does_a_file_that_no_longer_names_a_key(tmp_path: Path) -> None:
    gateway, api = served(tmp_path, "sesame")
    gateway.apply(replace(gateway.config, server=Server()))
    for headers in ([], [(b"authorization", b"Bearer sesame")]):
        with pytest.raises(ProviderAuthentication):
            api.authenticate(headers)


async def test_a_broken_file_keeps_no_reload_from_its_end(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / FILE)
    gateway, api = served(tmp_path)
    later: list[int] = []
    gateway.on_change(lambda: later.append(api.max_body))
    file.path.write_text("{")
    gateway.apply(replace(gateway.config, server=Server(max_body_bytes=1025)))
    assert later == [1025]
    with pytest.raises(ProviderUnavailable, match=r"keys\.json"):
        api.authenticate([])
    with pytest.raises(ProviderUnavailable, match=r"keys\.json"):
        served(tmp_path)
    file.path.unlink()
    assert api.authenticate([]) is LOCAL


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tenant": ""}, "tenant"),
        ({"tenant": "a b"}, "tenant"),
        ({"user": "x\n"}, "user"),
        ({"user": "x" * 129}, "user"),
        ({"scopes": ["root"]}, "'root' is not a scope"),
        ({"scopes": []}, "needs a scope"),
    ],
)
def test_what_no_key_can_be_made_of(file: KeyFile, settings: dict[str, object], message: str) -> None:
    with pytest.raises(GatewayError, match=message):
        file.add(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "path", "scope", "scopes", "allowed"),
    [
        ("POST", "/v1/chat/completions", "models", {"models"}, True),
        ("POST", "/v1/chat/completions", "models", {"rooms"}, False),
        ("GET", "/llm/room", "rooms:read", {"rooms:read"}, True),
        ("GET", "/llm/room", "rooms:read", {"rooms"}, True),
        ("POST", "/llm/room", "rooms", {"rooms:read"}, False),
        ("POST", "/llm/room", "rooms", {"models"}, False),
        ("POST", "/api/user/secrets", "rooms", {"*"}, True),
        ("POST", "/v1/audio/speech", "models", {"models"}, True),
        ("GET", "/upstream/m/slots", "upstream", {"models"}, False),
        ("GET", "/upstream/m/slots", "upstream", {"upstream"}, True),
    ],
)
def test_scopes(method: str, path: str, scope: str, scopes: set[str], allowed: bool) -> None:
    assert wanted(method, path) == scope
    assert Principal(scopes=frozenset(scopes)).allows(scope) is allowed


def test_the_commands(tmp_path: Path) -> None:
    state = tmp_path / "state"
    config(tmp_path, f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nstate_dir: {state}\n")
    added = ctxgate("keys", "add", "--tenant", "acme", "--scope", "rooms", cwd=tmp_path)
    assert added.returncode == 0
    key = added.stdout.strip()
    assert keyring(KeyFile(state / "keys.json")).principal(key.encode()).tenant == "acme"
    listed = json.loads(ctxgate("keys", "list", "--json", cwd=tmp_path).stdout)["keys"]
    assert [(entry["tenant"], entry["user"], entry["scopes"]) for entry in listed] == [("acme", "local", ["rooms"])]
    shown = ctxgate("keys", "list", cwd=tmp_path).stdout
    assert "acme" in shown
    assert key not in shown
    assert ctxgate("keys", "revoke", listed[0]["id"], cwd=tmp_path).returncode == 0
    again = ctxgate("keys", "revoke", listed[0]["id"], cwd=tmp_path)
    assert (again.returncode, "there is no key" in again.stderr) == (2, True)


def test_serving_others_without_a_key_is_refused(tmp_path: Path) -> None:
    text = f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nstate_dir: {tmp_path}\nserver: {{host: 0.0.0.0}}\n"
    config(tmp_path, text)
    refused = ctxgate("serve", cwd=tmp_path)
    assert refused.returncode == 2
    assert "ctxgate keys add" in refused.stderr

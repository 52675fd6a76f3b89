"""Users' secrets: who may use them, and where they never stand."""

from __future__ import annotations

import asyncio
import logging
import stat
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gateway.errors import ProviderUnavailable
from gateway.features.rooms.schemas import Secret
from gateway.features.rooms.vault import Vault, key_of_file, key_of_keychain
from gateway.server.keys import KeyFile
from gateway.store import Store
from tests.gateway.double import Double, Exchange, answers, silence
from tests.rooms.running import House, calls, house, speaks

VALUE = "sk-very-secret-0123456789"


async def add(rooms: House, name: str = "mine", provider: str = "acme", **headers: str) -> Any:
    body = {"name": name, "value": VALUE, "kind": "api_key", "metadata": {"provider": provider}}
    return await rooms.call("POST", "/api/user/secrets", 201, body, **headers)


def files(folder: Path) -> list[Path]:
    found = [file for file in folder.rglob("*") if file.is_file()]
    assert folder / "ctxgate.db" in found
    return found


async def fails(rooms: House, code: str, **headers: str) -> None:
    """A turn for the provider, which ends with that code."""
    room = (await rooms.call("POST", "/llm/room", 201, {"agents": [{"provider": "acme", "model": "big"}]}, **headers))[
        "id"
    ]
    await rooms.call("POST", f"/llm/room/{room}/messages", 202, {"content": "Hi"}, **headers)
    rooms.http.headers.update(headers)
    await rooms.until(room, "room:failed")
    assert (await rooms.get(room))["last_error"]["code"] == code


async def test_a_provider_gets_the_one_secret_of_the_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    echo = {"error": {"message": f"the key {VALUE} is not good enough"}}
    async with Double(speaks("Hello."), answers(echo, 401)).serve() as acme:
        providers = {"acme": f"http://127.0.0.1:{acme.address.port}/v1"}
        async with house(tmp_path, silence, providers=providers) as rooms:
            await fails(rooms, "provider_secret_missing")
            await add(rooms, "other", provider="elsewhere")
            await fails(rooms, "provider_secret_missing")
            first = await add(rooms)
            assert VALUE not in str(first)
            room = await rooms.rent(agents=[{"provider": "acme", "model": "big"}])
            await rooms.say(room, "Hi")
            await rooms.until(room, "room:idle")
            (asked,) = acme.requests
            assert asked.headers["authorization"] == f"Bearer {VALUE}"
            assert (asked.path, asked.json["model"]) == ("/v1/chat/completions", "big")
            # A provider that repeats the key in its refusal.
            await fails(rooms, "invalid_api_key")
            taken = await rooms.call("POST", "/api/user/secrets", 409, {"name": "mine", "value": "x"})
            assert taken["code"] == "secret_exists"
            second = await add(rooms, "again")
            await fails(rooms, "provider_secret_ambiguous")
            shown = await rooms.call("GET", "/api/user/secrets", 200)
            assert [secret["name"] for secret in shown] == ["again", "mine", "other"]
            await rooms.call("DELETE", f"/api/user/secrets/{second['id']}", 200)
            gone = await rooms.call("DELETE", f"/api/user/secrets/{second['id']}", 404)
            assert gone["code"] == "secret_not_found"
            everything = [await rooms.history(known["id"]) for known in await rooms.call("GET", "/llm/room", 200)]
            assert len(everything) == 5
            assert VALUE not in str([everything, shown])
            assert rooms.engine.requests == []
    assert VALUE not in caplog.text
    assert [file for file in files(tmp_path) if VALUE.encode() in file.read_bytes()] == []


async def test_a_secret_is_private_to_its_user(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    ann, bob, eve = (
        {"authorization": f"Bearer {keys.add(tenant=tenant, user=user)[1]}"}
        for tenant, user in (("acme", "ann"), ("acme", "bob"), ("other", "ann"))
    )
    async with Double(speaks("Hello.")).serve() as acme:
        providers = {"acme": f"http://127.0.0.1:{acme.address.port}/v1"}
        async with house(tmp_path, silence, providers=providers) as rooms:
            secret = await add(rooms, **ann)
            for other in (bob, eve):
                assert await rooms.call("GET", "/api/user/secrets", 200, **other) == []
                await rooms.call("DELETE", f"/api/user/secrets/{secret['id']}", 404, **other)
                await fails(rooms, "provider_secret_missing", **other)
            # The room is ann's, the message bob's: it is bob who must have the secret.
            agents = {"agents": [{"provider": "acme", "model": "big"}]}
            room = (await rooms.call("POST", "/llm/room", 201, agents, **ann))["id"]
            await rooms.call("POST", f"/llm/room/{room}/messages", 202, {"content": "Hi"}, **bob)
            rooms.http.headers.update(ann)
            await rooms.until(room, "room:failed")
            assert acme.requests == []


async def test_a_secret_can_t_be_opened_with_another_key(tmp_path: Path) -> None:
    async with Double(speaks("Hello.")).serve() as acme:
        providers = {"acme": f"http://127.0.0.1:{acme.address.port}/v1"}
        async with house(tmp_path, silence, providers=providers) as rooms:
            await add(rooms)
        (tmp_path / "secrets.key").unlink()
        async with house(tmp_path, silence, providers=providers) as rooms:
            await fails(rooms, "secret_unreadable")
        assert acme.requests == []


async def test_headers_that_a_model_sends_are_no_part_of_history(tmp_path: Path) -> None:
    async def asks(exchange: Exchange) -> None:
        made = {"url": "http://127.0.0.1:1/", "headers": {"Authorization": VALUE}}
        await calls(("curl_get", made), ("curl_get", {**made, "timeout_ms": "soon"}))(exchange)

    async with house(tmp_path, asks, speaks("No.")) as rooms:
        room = await rooms.rent(tool_policy={"access": "read"})
        await rooms.say(room)
        await rooms.until(room, "room:idle")
        history = await rooms.history(room)
        assert "tool:refused" in [event["event_type"] for event in history["events"]]
        assert VALUE not in str(history)


async def test_first_secrets_at_once_have_one_key(tmp_path: Path) -> None:
    made: list[bytes] = []

    def key() -> bytes:
        made.append(bytes([len(made)]) * 32)
        return made[-1]

    store = await Store.open(f"sqlite:///{tmp_path}/ctxgate.db")
    vault = Vault(store, key)
    secret = Secret(name="mine", value=VALUE, metadata={"provider": "acme"})
    await asyncio.gather(*(vault.add("local", f"user {number}", secret) for number in range(4)))
    assert [await vault.key_for("local", f"user {number}", "acme") for number in range(4)] == [VALUE] * 4
    assert len(made) == 1
    await store.aclose()


def test_the_key_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secrets.key"
    key = key_of_file(path)
    assert (len(key), key_of_file(path)) == (32, key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(ProviderUnavailable, match="chmod 600"):
        key_of_file(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ProviderUnavailable, match="32 bytes"):
        key_of_file(path)
    with pytest.raises(ProviderUnavailable) as refused:
        key_of_file(path / "below")
    assert refused.value.code == "secrets_unavailable"


def test_the_keychain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package keyring's interface, over a chain of the test's own."""
    keyring, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    chain: dict[tuple[str, str], str] = {}
    locked = False

    class KeyringError(Exception):
        pass

    def get_password(service: str, name: str) -> str | None:
        if locked:
            raise KeyringError(VALUE)
        return chain.get((service, name))

    def set_password(service: str, name: str, value: str) -> None:
        chain[service, name] = value

    errors.KeyringError = KeyringError  # type: ignore[attr-defined]
    keyring.errors = errors  # type: ignore[attr-defined]
    keyring.get_password, keyring.set_password = get_password, set_password  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    key = key_of_keychain()
    assert (len(key), key_of_keychain()) == (32, key)
    assert list(chain) == [("ctxgate", "rooms-secrets-key")]
    locked = True
    with pytest.raises(ProviderUnavailable, match="secret_key_file") as refused:
        key_of_keychain()
    assert VALUE not in str(refused.value)
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ProviderUnavailable, match="secret_key_file"):
        key_of_keychain()

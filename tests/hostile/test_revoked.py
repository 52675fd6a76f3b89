"""A key that is revoked, or loses its scope: what it has opened tells and does nothing more."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from gateway.server.keys import FILE, Key, KeyFile
from tests.hostile.running import Gateway, started
from tests.patience import PATIENCE

Change = Callable[[tuple[Key, ...]], tuple[Key, ...]]
CHANGES: dict[str, Callable[[str], Change]] = {
    "revoked": lambda id: lambda keys: tuple(key for key in keys if key.id != id),
    "of another scope": lambda id: (
        lambda keys: tuple(replace(key, scopes=("upstream",)) if key.id == id else key for key in keys)
    ),
}


class Two:
    """The owner's key, and another's that will be changed."""

    def __init__(self, folder: Path) -> None:
        self.file = KeyFile(folder / "state" / FILE)
        self.own = {"Authorization": f"Bearer {self.file.add()[1]}"}
        other, key = self.file.add(tenant="b", user="y", scopes=["models", "operations:read", "rooms"])
        self.id, self.other = other.id, {"Authorization": f"Bearer {key}"}

    def change(self, how: str, gateway: Gateway) -> None:
        """Returns once a request with the key is refused."""
        self.file.change(CHANGES[how](self.id))
        deadline = time.monotonic() + PATIENCE
        while gateway.ask("GET", "/v1/models", None, self.other).status == 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def configured(folder: Path) -> dict[str, Any]:
    return {"active_model": "echo", "models": {"echo": {"runtime": "echo"}}, "state_dir": str(folder / "state")}


@pytest.mark.parametrize("how", CHANGES)
async def test_a_websocket(how: str, tmp_path: Path) -> None:
    keys = Two(tmp_path)
    with started(tmp_path, configured(tmp_path)) as gateway:
        url = f"ws://127.0.0.1:{gateway.port}/v1/responses"
        async with connect(url, proxy=None, additional_headers=keys.other, open_timeout=PATIENCE) as client:

            async def ask() -> dict[str, Any]:
                await client.send(
                    json.dumps({"type": "response.create", "model": "echo", "input": "x", "store": False})
                )
                while (event := json.loads(await client.recv()))["type"] not in ("response.completed", "error"):
                    pass
                return dict(event)

            async with asyncio.timeout(PATIENCE):
                assert (await ask())["type"] == "response.completed"
                keys.change(how, gateway)
                refused = await ask()
                assert (refused["type"], refused["status"]) == ("error", 401 if how == "revoked" else 403)
                with pytest.raises(ConnectionClosed):
                    await client.recv()
            assert client.close_code == 1008


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("what", ["the gateway's", "a room's"])
async def test_events_that_are_followed(how: str, what: str, tmp_path: Path) -> None:
    keys = Two(tmp_path)
    with started(tmp_path, configured(tmp_path)) as gateway:
        own = {**keys.own, "Content-Type": "application/json"}
        async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as client:
            room = (await client.post("/llm/room", json={}, headers=keys.other)).json()["data"]["id"]
            path = "/-/events?follow=1" if what == "the gateway's" else f"/llm/room/{room}/events?follow=1"
            told = b""
            async with asyncio.timeout(PATIENCE), client.stream("GET", path, headers=keys.other) as stream:
                pieces = stream.aiter_bytes()
                told += await anext(pieces)
                keys.change(how, gateway)
                secret = {"model": "echo", "messages": [{"role": "user", "content": "Hi"}]}
                asked = await client.post(
                    "/v1/chat/completions", json=secret, headers={**own, "User-Agent": "secretive"}
                )
                assert asked.status_code == 200
                member = keys.file.add(tenant="b", user="z", scopes=["rooms"])[1]
                said = {"content": "secretive"}
                headers = {"Authorization": f"Bearer {member}"}
                posted = await client.post(f"/llm/room/{room}/messages", json=said, headers=headers)
                assert posted.status_code == 202, posted.text
                with suppress(httpx.RemoteProtocolError):  # the stream is cut
                    async for piece in pieces:
                        told += piece
            assert told
            assert b"secretive" not in told

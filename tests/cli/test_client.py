"""What commands say of an address that isn't a running gateway's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.cli.client import RunningGateway
from gateway.errors import GatewayError, ProviderInvalidRequest, ProviderInvalidResponse
from tests.cli.commands import config
from tests.gateway.double import Double, answers
from tests.patience import PATIENCE

ECHO = "active_model: e\nmodels: {e: {runtime: echo}}\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": "not found"}', "not found"),
        (b'{"error": {"message": "no such path", "code": 404, "category": ["a"]}}', "no such path"),
        (b'{"error": null}', "answered 404"),
        (b"[]", "answered 404"),
        (b"{", "is not ctxgate"),
    ],
)
async def test_another_server(body: bytes, said: str, tmp_path: Path) -> None:
    file = config(tmp_path, ECHO)
    async with asyncio.timeout(PATIENCE), Double(answers(body, status=404)).serve() as double:
        with (
            RunningGateway(file, f"http://127.0.0.1:{double.address.port}") as gateway,
            pytest.raises(ProviderInvalidResponse, match=said),
        ):
            await asyncio.to_thread(gateway.ask, "GET", "/-/status")


@pytest.mark.parametrize("url", ["http://[bad", "http://a\x01b"])
def test_no_address(url: str, tmp_path: Path) -> None:
    with pytest.raises(ProviderInvalidRequest, match="is no address"):
        RunningGateway(config(tmp_path, ECHO), url)


def test_no_name_of_a_host(tmp_path: Path) -> None:
    with (
        RunningGateway(config(tmp_path, ECHO), "http://..") as gateway,
        pytest.raises(GatewayError, match="no gateway"),
    ):
        gateway.ask("GET", "/-/status")

"""The models as Anthropic's clients read them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest

from gateway.config import Model
from gateway.features.messages.wire.models import told
from tests.api.published import check
from tests.gateway.client import Answer
from tests.gateway.double import Json, answers
from tests.gateway.running import Running, running
from tests.patience import PATIENCE

VERSION = "anthropic-version: 2023-06-01\r\n"
KEY = "Authorization: Bearer k\r\n"


async def get(gateway: Running, path: str, head: str = VERSION) -> Answer:
    async with await gateway.connect() as client:
        await client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
        return await client.answer()


CAN: dict[str, tuple[dict[str, Any], dict[str, bool]]] = {
    "nothing is known": ({}, {"image_input": False, "thinking": False, "effort": False, "structured_outputs": True}),
    "vision": ({"capabilities": ("vision",)}, {"image_input": True, "thinking": False}),
    "a projector": ({"mmproj_path": Path("/a.gguf")}, {"image_input": True}),
    "another model describes": ({"describe_with": "eyes"}, {"image_input": True}),
    "reasoning": ({"capabilities": ("reasoning",)}, {"thinking": True, "effort": True, "image_input": False}),
    "vectors": ({"role": "embedding", "mmproj_path": Path("/a.gguf")}, {"image_input": False}),
    "echo": ({"runtime": "echo"}, {"structured_outputs": False}),
}


@pytest.mark.parametrize("name", CAN)
def test_what_a_model_can_do(name: str) -> None:
    settings, expected = CAN[name]
    found = told(Model(**{"name": "m", "runtime": "openai", "base_url": "http://127.0.0.1:1", **settings}))
    assert {kind: found["capabilities"][kind]["supported"] for kind in expected} == expected
    thinks = found["capabilities"]["thinking"]
    assert thinks["types"]["enabled"]["supported"] is thinks["supported"]
    assert "max_input_tokens" not in found


@pytest.mark.parametrize("kind", ["anthropic.types:ModelInfo", "anthropic.types.beta:BetaModelInfo"])
async def test_models_are_anthropic_s_for_its_clients(kind: str) -> None:
    async with running(answers(), capabilities=("vision",), context_window=4096) as gateway:
        listed = (await get(gateway, "/v1/models")).json["data"]
        for path in ("/v1/models/m", "/models/m?all=1"):
            assert (await get(gateway, path)).json == listed[0]
        for model in listed:
            check(kind, model)
        assert (listed[0]["max_input_tokens"], listed[0]["max_tokens"], listed[0]["context_window"]) == (4096,) * 3
        others = (await get(gateway, "/v1/models", "")).json["data"]
        assert others[0]["capabilities"] == ["vision"], "as before for everybody else"
        assert not {"lifecycle", "max_tokens"} & others[0].keys()


async def test_errors_are_anthropic_s_for_its_clients() -> None:
    async with running(answers(), keys=("k",)) as gateway:
        cases: list[tuple[str, str, int, str]] = [
            ("/v1/models/nobody", KEY, 404, "not_found_error"),
            ("/models/nobody/ready", KEY, 404, "not_found_error"),
            ("/v1/models/m", "", 401, "authentication_error"),
            ("/v1/models", "", 401, "authentication_error"),
            ("/v1/models?all=x", KEY, 400, "invalid_request_error"),
        ]
        for path, key, status, kind in cases:
            answer = await get(gateway, path, VERSION + key)
            body: Json = answer.json
            assert (answer.status, body["type"], body["error"]["type"]) == (status, "error", kind), path
            theirs = await get(gateway, path, key)
            assert (theirs.status, "type" in theirs.json) == (status, False), "OpenAI's for everybody else"
        # What lies elsewhere keeps its own.
        assert "type" not in (await get(gateway, "/v1/batches/x", VERSION + KEY)).json


async def test_its_own_package_reads_them() -> None:
    async with running(answers(), capabilities=("vision",), context_window=4096) as gateway:

        def ask() -> None:
            with anthropic.Anthropic(base_url=gateway.url, api_key="x", max_retries=0, timeout=PATIENCE) as client:
                model = client.models.retrieve("m")
                assert model.capabilities is not None
                assert model.capabilities.image_input.supported
                assert model.max_input_tokens == 4096
                assert [each.id for each in client.models.list()] == ["m", "echo"]
                with pytest.raises(anthropic.NotFoundError, match="nobody") as caught:
                    client.models.retrieve("nobody")
                assert isinstance(caught.value.body, dict)
                assert caught.value.body["type"] == "error"

        await asyncio.to_thread(ask)

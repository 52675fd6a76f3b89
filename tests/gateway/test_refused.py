"""What a refused request held is free as soon as it is answered, not at the next collection: bodies may have 30 MB."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config import Config, Model
from gateway.core import Gateway
from gateway.errors import GatewayError
from gateway.wire.chat import ChatRequest
from tests.gateway.double import Double, Json, answers

TEMPLATE: Json = {"error": {"code": 500, "message": "Error: Jinja Exception: Unknown role: user"}}
PICTURE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
REFUSED: dict[str, tuple[Json | bytes, int, Json]] = {
    "by the template, in each form": (TEMPLATE, 500, {"content": "Hi"}),
    "for another reason": ({"error": {"message": "temperature must be a number"}}, 400, {"content": "Hi"}),
    "images": ({"error": {"message": "unsupported content type: image_url"}}, 400, {"content": [PICTURE]}),
}


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def refusal(gateway: Gateway, message: Json) -> tuple[int, weakref.ref[GatewayError]]:
    request = ChatRequest.parse(json.dumps({"messages": [{"role": "user", **message}]}).encode())
    try:
        await gateway.chat(request)
    except GatewayError as error:
        return error.status, weakref.ref(error)
    raise AssertionError("it was answered")


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("images", ["refuse", "drop"])
async def test_nothing_is_kept_of_it(why: str, images: str, no_collection: None) -> None:
    said, status, message = REFUSED[why]
    async with Double(answers(said, status)).serve() as engine:
        url = f"http://127.0.0.1:{engine.address.port}"
        model = Model(name="m", runtime="openai", base_url=url, images=images)  # type: ignore[arg-type]
        config = Config(source=Path(__file__), active_model="m", models={"m": model})
        async with Gateway(config) as gateway:
            status, error = await refusal(gateway, message)
            assert (status, error()) == (400, None)

"""No engine fetches what a stranger names: llama.cpp's server would, wherever the URL leads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.conftest import Unharmed
from tests.hostile.running import Upstream, configuration, started

URLS = (
    "http://127.0.0.1:9/",
    "http://169.254.169.254/latest/meta-data",
    "https://example.org/a.png",
    "file:///etc/passwd",
    "/etc/passwd",
    "DATA:x",
    " data:x",
)
PIXEL = "data:image/png;base64,AAAA"


def asked(url: str) -> dict[str, tuple[str, Any]]:
    def chat(*parts: Any) -> tuple[str, Any]:
        return "/v1/chat/completions", {"model": "eyes", "messages": [{"role": "user", "content": [*parts]}]}

    text = {"type": "text", "text": "Hi"}
    escaped = json.dumps(chat({"type": "image_url", "image_url": {"url": url}})[1]).replace(
        "image_url", "image\\u005furl"
    )
    return {
        "chat": chat(text, {"type": "image_url", "image_url": {"url": url}}),
        "a bare URL": chat({"type": "image_url", "image_url": url}),
        "escaped": ("/v1/chat/completions", escaped.encode()),
        "audio": chat({"type": "input_audio", "input_audio": {"url": url}}),
        "video": chat({"type": "video_url", "video_url": {"url": url}}),
        "responses": (
            "/v1/responses",
            {
                **{"model": "eyes", "store": False},
                "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}],
            },
        ),
        "messages": (
            "/v1/messages",
            {
                **{"model": "eyes", "max_tokens": 9},
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}]},
                ],
            },
        ),
        "count": (
            "/v1/messages/count_tokens",
            {
                **{"model": "eyes"},
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}]},
                ],
            },
        ),
    }


def test_urls(
    upstream: Upstream, tmp_path: Path, test_model: Path, unharmed: Unharmed, subtests: pytest.Subtests
) -> None:
    config = configuration(upstream, tmp_path, test_model)
    config["models"]["eyes"] = {"runtime": "llama.cpp", "base_url": f"http://127.0.0.1:{upstream.port}"}
    with started(tmp_path, config) as gateway:
        for url in URLS:
            for what, (path, body) in asked(url).items():
                with subtests.test(what, url=url):
                    before = upstream.asked
                    answer = gateway.ask("POST", path, body)
                    sent = [request.body for request in upstream.double.requests[before:]]
                    assert not any(url.encode() in each for each in sent), sent
                    assert answer.status >= 400 or what == "count", answer
        path, body = asked(PIXEL)["chat"]
        assert gateway.ask("POST", path, body).status == 200
        assert any(PIXEL.encode() in request.body for request in upstream.double.requests)

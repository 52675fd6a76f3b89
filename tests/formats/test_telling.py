"""What was mended is told: in a header of a whole answer, in the last chunk's `ctxgate` of a streamed one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from normalizers.write.grammar import literal
from tests.engines.served import served
from tests.formats.asking import ASK, Json, tool
from tests.patience import PATIENCE

START, END = "<|tool_call_start|>", "<|tool_call_end|>"
EVENT: Json = {
    "name": "create_event",
    "parameters": {"type": "object", "properties": {"title": {"type": "string"}, "days": {"type": "integer"}}},
}
SAID: dict[str, tuple[str, str]] = {
    "none": (f'{START}[create_event(title="x", days=3)]{END}', "none"),
    "lexical": (f"{START}[create_event(title=x, days=3)]{END}", "lexical"),
    "schema": (f'{START}[create_event(title="x", days="3")]{END}', "schema"),
    "text": ("Nothing to do.", "none"),
}


@pytest.fixture(scope="module", params=["fast", "asgi"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, test_model: Path) -> Any:
    pytest.importorskip("xllamacpp")
    model = {"runtime": "llama.cpp", "path": str(test_model), "tool_call_format": "pythonic", "threads": 1}
    with served({"active_model": "m", "models": {"m": model}}, tmp_path_factory.mktemp("gateway"), PATH="") as gateway:
        # A query takes a request off the hot route.
        yield gateway.url + "/v1/chat/completions" + ("?asgi" if request.param == "asgi" else "")


def body(text: str, **fields: Any) -> Json:
    return {
        "messages": [ASK],
        "tools": [tool(EVENT)],
        "max_tokens": 99,
        "grammar": f"root ::= {literal(text)}",
        **fields,
    }


@pytest.mark.parametrize("name", SAID)
def test_a_whole_answer(gateway: str, name: str) -> None:
    text, mended = SAID[name]
    response = httpx.post(gateway, json=body(text), timeout=PATIENCE).raise_for_status()
    assert response.headers["x-ctxgate-mended"] == mended
    assert "x-ctxgate-healed" not in response.headers
    assert response.json().get("ctxgate", {}).get("mended", "none") == mended


@pytest.mark.parametrize("name", SAID)
def test_a_streamed_answer(gateway: str, name: str) -> None:
    text, mended = SAID[name]
    response = httpx.post(gateway, json=body(text, stream=True), timeout=PATIENCE).raise_for_status()
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    (last,) = [chunk for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    # An answer without a call leaves as it came: there was nothing to mend.
    assert last.get("ctxgate") == (None if name == "text" else {"mended": mended})
    assert [chunk for chunk in chunks if "ctxgate" in chunk] == [last] * (name != "text")


def test_a_healed_past(gateway: str) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "create_event", "arguments": "{'days': 3}"}}
    past = [{"role": "assistant", "content": None, "tool_calls": [call, call]}, {"role": "tool", "content": "ok"}]
    response = httpx.post(gateway, json=body("Fine.", messages=[ASK, *past, ASK]), timeout=PATIENCE).raise_for_status()
    assert response.headers["x-ctxgate-healed"] == "arguments=2, ids=2"
    assert response.json()["ctxgate"] == {"healed": {"arguments": 2, "ids": 2}}

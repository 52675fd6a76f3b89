"""llama.cpp's backend on real llama.cpp, two versions of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from gateway.backends.llamacpp import LlamaCppBackend
from gateway.config import Model, Runtime
from gateway.engines import Engine
from gateway.engines.recipe import Machine
from gateway.errors import ProviderInvalidRequest

WITH_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
MESSAGES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@pytest.mark.parametrize("machine", ["xllamacpp", "on_path"])
@pytest.mark.parametrize(("template", "takes"), [(WITH_TOOLS + MESSAGES, True), (MESSAGES, False)])
async def test_takes_tools_by_its_own_reading_of_the_template(
    model: Model, machine: str, template: str, takes: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    made: Callable[[], Machine] = request.getfixturevalue(machine)
    (tmp_path / "t.jinja").write_text(template)
    runtime = Runtime(args=("--chat-template-file", str(tmp_path / "t.jinja")))
    engine = Engine(replace(model, engine=runtime), machine=made)
    try:
        backend = LlamaCppBackend(model, await engine.requests.ensure())
        assert await backend.takes_tools() is takes
        await backend.aclose()
    finally:
        await engine.stop()


@pytest.mark.parametrize("machine", ["xllamacpp", "on_path"])
async def test_embedding_by_a_model_for_chat(model: Model, machine: str, request: pytest.FixtureRequest) -> None:
    """The refusal says what makes it embed."""
    made: Callable[[], Machine] = request.getfixturevalue(machine)
    fields = {"input": Raw(b'"some text"')}
    for args in ((), ("--pooling", "mean")):
        embedding = replace(model, role="embedding", context_window=256, engine=Runtime(threads=1, args=args))
        engine = Engine(embedding, machine=made)
        try:
            backend = LlamaCppBackend(embedding, await engine.requests.ensure())
            if args:
                assert b'"embedding"' in await (await backend.post("embeddings", {**fields})).whole()
            else:
                with pytest.raises(ProviderInvalidRequest, match=r"args: \[--pooling, mean\]") as refused:
                    await backend.post("embeddings", {**fields})
                assert refused.value.param == "model"
            await backend.aclose()
        finally:
            await engine.stop()

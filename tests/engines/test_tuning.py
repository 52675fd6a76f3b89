"""Speculation and LoRA adapters with real engines, and what they change in the answers: nothing, and much."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway import backends
from gateway.config import Adapter, Draft, Model, Runtime
from gateway.engines import Engine
from gateway.engines.prompts import prints
from gateway.engines.recipe import Machine, recipe
from gateway.features.evaluation.tune.texts import TEXTS
from gateway.wire.chat import ChatRequest, encode
from tests.conftest import ROOT

RANK = 4
TALK = "one two three four five one two three four five one two three four five one two"


@pytest.fixture
def adapter(test_model: Path, tmp_path: Path) -> Path:
    """A LoRA adapter for the test model with random weights, which changes what it says."""
    gguf = pytest.importorskip("gguf", reason="no gguf, which writes the adapter")
    import numpy

    file = tmp_path / "adapter.gguf"
    random = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    for tensor in gguf.GGUFReader(test_model).tensors:
        if tensor.name.endswith("attn_q.weight"):
            inputs, outputs = map(int, tensor.shape)
            writer.add_tensor(f"{tensor.name}.lora_a", random.normal(size=(RANK, inputs)).astype(numpy.float32))
            writer.add_tensor(f"{tensor.name}.lora_b", random.normal(size=(outputs, RANK)).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(params=["xllamacpp", "on_path"])
def machine(request: pytest.FixtureRequest) -> Callable[[], Machine]:
    made: Callable[[], Machine] = request.getfixturevalue(request.param)
    return made


@asynccontextmanager
async def asked(model: Model, machine: Callable[[], Machine]) -> AsyncIterator[Callable[..., Any]]:
    """Asks the model by one of its names for an answer at temperature 0."""
    engine = Engine(model, machine=machine)
    backend = backends.load(model.runtime)(model, await engine.requests.ensure())

    async def ask(name: str = model.name, text: str = TALK, **fields: object) -> Any:
        body = {"model": name, "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
        request = ChatRequest.parse(encode({"max_tokens": 48, **body}))
        return json.loads(await (await backend.open(request, dict(request.fields))).whole())

    try:
        yield ask
    finally:
        await backend.aclose()
        await engine.stop()


def words(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


PLAIN = Runtime(threads=1, draft=Draft(ngram=False))


async def test_a_draft_model_is_used_and_changes_no_word(
    model: Model, test_model: Path, machine: Callable[[], Machine]
) -> None:
    draft = Draft(model=test_model, tokens=4)
    async with asked(replace(model, engine=PLAIN), machine) as ask:
        plain = await ask(ignore_eos=True, max_tokens=300)
    async with asked(replace(model, engine=Runtime(draft=draft)), machine) as ask:
        drafted = await ask(ignore_eos=True, max_tokens=300)
    assert words(drafted) == words(plain)
    assert "draft_n" not in plain["timings"]
    assert drafted["timings"]["draft_n_accepted"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_ngrams_change_no_word_of_a_real_model(machine: Callable[[], Machine]) -> None:
    """An edit of code at temperature 0: words that the prompt has, and some that it hasn't. It is the default."""
    weights = ROOT / "_models" / "smollm2-135m-instruct.gguf"
    if not weights.exists():
        pytest.skip(f"no {weights.name}: `ctxgate pull` fetches it")
    model = Model(name="smollm2", runtime="llama.cpp", path=weights, context_window=1024, engine=Runtime(threads=1))
    messages = TEXTS["code edit"](1, 160)["messages"]
    async with asked(replace(model, engine=PLAIN), machine) as ask:
        plain = await ask(messages=messages, max_tokens=160)
    assert "draft_n" not in plain["timings"]
    for engine in (Runtime(threads=1), Runtime(threads=1, draft=Draft(ngram=True, tokens=16))):
        async with asked(replace(model, engine=engine), machine) as ask:
            drafted = await ask(messages=messages, max_tokens=160)
        assert words(drafted) == words(plain)
        assert drafted["timings"]["draft_n_accepted"] > 0


async def test_requests_choose_an_adapter_by_its_alias(
    model: Model, adapter: Path, machine: Callable[[], Machine]
) -> None:
    tuned = replace(model, engine=Runtime(adapters=(Adapter(path=adapter, alias="tuned"),)))
    async with asked(model, machine) as ask:
        plain = words(await ask())
    async with asked(tuned, machine) as ask:
        # Alternately, so that a prompt which the other one shaped would show.
        said = [words(await ask(name)) for name in ("tiny", "tuned", "tiny", "tuned", "tuned", "tiny")]
        own = words(await ask("tuned", lora=[{"id": 0, "scale": 0.0}]))
    assert said == [plain, said[1], plain, said[1], said[1], plain]
    assert said[1] != plain
    assert own == plain  # what the request itself says wins
    async with asked(replace(model, engine=Runtime(adapters=(Adapter(path=adapter),))), machine) as ask:
        assert words(await ask()) == said[1]


def test_adapters_and_drafts_are_part_of_what_a_saved_prompt_is_for(model: Model, adapter: Path) -> None:
    """The file's contents, not its name: a retrained adapter must not meet what the old one shaped."""
    machine = Machine(cores=1, which=lambda name: sys.executable, has=lambda module: True, free_port=lambda: 1)
    tuned = replace(model, engine=Runtime(adapters=(Adapter(path=adapter),)))

    def key() -> list[str]:
        return prints(tuned, recipe(tuned, machine, 1))

    before = key()
    assert key() == before != prints(model, recipe(model, machine, 1))
    written = bytearray(adapter.read_bytes())
    written[-1] ^= 1
    adapter.write_bytes(written)
    assert key() != before


def test_a_missing_adapter_is_named(model: Model, tmp_path: Path) -> None:
    from gateway.engines.launch import weights_missing

    absent = replace(model, engine=Runtime(adapters=(Adapter(path=tmp_path / "none.gguf"),)))
    assert "correct its `adapters[0].path`" in str(weights_missing(absent))


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", ["plain", "draft", "quantised", "adapter"])
async def test_mlx_takes_what_it_has(kind: str, mlx_python: str, mlx_model: Path, tmp_path: Path) -> None:
    from gateway.engines.machine import this_machine

    plain = Runtime(threads=1, batch=64)
    tuned = {
        "plain": plain,
        "draft": replace(plain, draft=Draft(model=mlx_model, tokens=2)),
        "quantised": replace(plain, kv_cache_type="q8_0"),
        "adapter": replace(plain, adapters=(Adapter(path=tmp_path / "adapter"),)),
    }[kind]
    if kind == "adapter":
        _mlx_adapter(mlx_model, tmp_path / "adapter")
    model = Model(name="tiny", runtime="mlx", path=mlx_model, context_window=512)

    def machine() -> Machine:
        return replace(this_machine(), python=mlx_python)

    async with asked(replace(model, engine=plain), machine) as ask:
        before = words(await ask())
    async with asked(replace(model, engine=tuned), machine) as ask:
        after = words(await ask())
    if kind in ("plain", "draft"):
        assert after == before
    if kind == "adapter":
        assert after != before


def _mlx_adapter(model: Path, folder: Path) -> None:
    """A LoRA adapter with random weights."""
    import mlx.core as mx

    config = json.loads((model / "config.json").read_text("utf-8"))
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    folder.mkdir()
    lora = {"rank": RANK, "scale": 20.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    described = {"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": lora}
    (folder / "adapter_config.json").write_text(json.dumps(described), "utf-8")
    weights = {}
    for layer in range(layers):
        name = f"model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_a"] = mx.random.normal((width, RANK), key=mx.random.key(layer))
        weights[f"{name}.lora_b"] = mx.random.normal((RANK, width), key=mx.random.key(99 + layer))
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)

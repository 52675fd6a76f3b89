"""What Ollama's clients ask for reaches the engine, or the answer says that it doesn't."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.features.ollama.wire.options import SERVICE
from gateway.features.ollama.wire.request import Chat, Embed, Generate, unknown_fields
from tests.api.asking import said
from tests.backends.ollama_double import OllamaDouble
from tests.gateway.before_ollama import before
from tests.gateway.double import Json, answers, chunk, completion
from tests.gateway.running import running
from tests.patience import PATIENCE

HI: Json = {"role": "user", "content": "Hi"}
MIROSTAT: Json = {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2}

REACH: dict[str, tuple[str, Json, Json, list[str]]] = {
    "of every engine": ("openai", {"temperature": 0.1, "top_k": 3}, {"temperature": 0.1, "top_k": 3}, []),
    "typical_p": ("llama.cpp", {"typical_p": 0.7}, {"typical_p": 0.7}, []),
    "repeat_last_n": ("llama.cpp", {"repeat_last_n": -1}, {"repeat_last_n": -1}, []),
    "mirostat": ("llama.cpp", MIROSTAT, MIROSTAT, []),
    "logit_bias": ("llama.cpp", {"logit_bias": {"7": -1}}, {"logit_bias": {"7": -1}}, []),
    "num_keep": ("llama.cpp", {"num_keep": 5}, {"n_keep": 5}, []),
    "by its own name": ("mlx", {"repeat_last_n": 32}, {"repetition_context_size": 32}, []),
    "by another name": ("llama-cpp-python", {"mirostat": 2}, {"mirostat_mode": 2}, []),
    "Ollama's own": ("ollama", {"typical_p": 0.7, "num_keep": 4}, {"typical_p": 0.7, "num_keep": 4}, []),
    "some other server": ("openai", {"typical_p": 0.7, "num_keep": 4}, {"typical_p": 0.7, "n_keep": 4}, []),
    "a backend of one's own": ("pkg.mod:Class", {"typical_p": 0.7}, {"typical_p": 0.7}, []),
    "a service": (SERVICE, {"typical_p": 0.7, "logit_bias": {"7": 1}}, {"logit_bias": {"7": 1}}, ["typical_p"]),
    "not in mlx": ("mlx", {**MIROSTAT, "typical_p": 0.5}, {}, [*MIROSTAT, "typical_p"]),
    "not in llama-cpp-python": ("llama-cpp-python", {"typical_p": 0.5, "num_keep": 1}, {}, ["typical_p", "num_keep"]),
    "no longer in Ollama": ("ollama", {**MIROSTAT, "logit_bias": {"7": 1}}, {}, [*MIROSTAT, "logit_bias"]),
    "not in echo": ("echo", {"typical_p": 0.5}, {}, ["typical_p"]),
    "in no engine": ("llama.cpp", {"tfs_z": 0.5, "penalize_newline": True}, {}, ["tfs_z", "penalize_newline"]),
    "of nobody": ("llama.cpp", {"creativity": 11}, {}, ["creativity"]),
    "another context": ("llama.cpp", {"num_ctx": 4096}, {}, ["num_ctx"]),
    "the same context": ("llama.cpp", {"num_ctx": 1024}, {}, []),
    "how it is loaded": ("ollama", {"num_gpu": 1, "use_mmap": True}, {}, ["num_gpu", "use_mmap"]),
    "values that ask for nothing": (
        "mlx",
        {"mirostat": 0, "mirostat_tau": 5, "typical_p": 1.0, "tfs_z": 1, "num_keep": 0, "numa": False},
        {},
        [],
    ),
    "null": ("mlx", {"mirostat": None, "num_ctx": None, "creativity": None}, {}, []),
    "no limit": ("llama.cpp", {"num_predict": -1}, {}, []),
    "to the end of the context": ("llama.cpp", {"num_predict": -2}, {}, []),
}  # fmt: skip


@pytest.mark.parametrize("name", REACH)
def test_options_by_engine(name: str) -> None:
    runtime, options, expected, dropped = REACH[name]
    body = {"messages": [HI], "stream": False, "options": options}
    wanted = Chat.parse(json.dumps(body).encode())
    fields = wanted.chat_fields(runtime)
    del fields["messages"], fields["stream"]
    assert fields == expected
    warnings = [*wanted.warnings(runtime, 1024)]
    assert [each["text"].partition(":")[0] for each in warnings] == dropped
    assert {each["code"] for each in warnings} <= {"option_ignored"}


TOLD: dict[str, tuple[Any, Json, list[str]]] = {
    "nothing": (Chat, {}, []),
    "truncate": (Chat, {"truncate": True}, ["truncate"]),
    "no truncate": (Chat, {"truncate": False, "shift": False}, []),
    "shift": (Generate, {"shift": True, "prompt": "a"}, ["shift"]),
    "top_logprobs alone": (Chat, {"top_logprobs": 2}, ["top_logprobs"]),
    "top_logprobs": (Chat, {"logprobs": True, "top_logprobs": 2}, []),
    "a field of nobody": (Chat, {"logit_bias": {"7": 1}, "nonsense": 1}, ["logit_bias", "nonsense"]),
    "a raw prompt's pictures": (Generate, {"prompt": "a", "raw": True, "images": ["AA=="]}, ["images"]),
    "a raw prompt's thinking": (Generate, {"prompt": "a", "raw": True, "think": True}, ["think"]),
    "a raw prompt's format": (Generate, {"prompt": "a", "raw": True, "format": "json"}, ["format"]),
    "a suffix and a system message": (Generate, {"prompt": "a", "suffix": "b", "system": "c"}, ["system"]),
    "vectors that are cut": (Embed, {"input": "a", "truncate": True}, ["truncate"]),
    "options of vectors": (Embed, {"input": "a", "options": {"num_ctx": 9, "mirostat": 1}}, ["num_ctx", "mirostat"]),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_has_no_effect_is_told(name: str) -> None:
    kind, body, expected = TOLD[name]
    data = json.dumps(body).encode()
    warnings = [*unknown_fields(kind, data), *kind.parse(data).warnings("mlx", 1024)]
    assert [each["text"].partition(":")[0] for each in warnings] == expected


@pytest.mark.parametrize(
    ("kind", "body", "param"),
    [
        (Chat, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (Chat, {"top_logprobs": -1}, "top_logprobs"),
        (Generate, {"prompt": "a", "raw": True, "system": "b"}, "system"),
        (Chat, {"truncate": "yes"}, "truncate"),
    ],
)
def test_what_is_refused(kind: Any, body: Json, param: str) -> None:
    with pytest.raises(ProviderInvalidRequest) as caught:
        kind.parse(json.dumps(body).encode()).chat_fields()
    assert caught.value.param == param


LIMITS: dict[str, tuple[Json, Any, Json]] = {
    "the model's": ({}, None, {"max_tokens": 8}),
    "the request's": ({}, 3, {"max_tokens": 3}),
    "none": ({}, -1, {}),
    "to the end of the context": ({}, -2, {}),
    "as Ollama's runner has it": ({}, 0, {}),
    "null": ({}, None, {"max_tokens": 8}),
    "not the caller's to set": ({"strip_params": ("max_tokens",)}, -1, {"max_tokens": 8}),
    "the operator's": ({"force_params": {"max_tokens": 5}}, -1, {"max_tokens": 5}),
    "its other name": ({"force_params": {"max_completion_tokens": 5}}, -1, {"max_completion_tokens": 5}),
}


@pytest.mark.parametrize("name", LIMITS)
async def test_num_predict(name: str) -> None:
    settings, limit, expected = LIMITS[name]
    async with running(
        answers(), said(chunk()), answers(), said(chunk()), defaults={"max_tokens": 8}, **settings
    ) as it:
        for path, more in (("/api/chat", {"messages": [HI]}), ("/api/generate", {"prompt": "Hi"})):
            for stream in (False, True):
                body = {"model": "m", "stream": stream, "options": {"num_predict": limit}, **more}
                assert (await it.ask(body, path)).status == 200
                sent = it.engine.requests[-1].json
                assert {name: value for name, value in sent.items() if "_tokens" in name} == expected


@pytest.mark.parametrize(("limit", "expected"), [(-1, -1), (-2, -1), (3, 3), (None, 8)])
async def test_num_predict_of_an_ollama(limit: int | None, expected: int) -> None:
    """Whose model may have a limit of its own."""
    ollama = OllamaDouble({"m": ["completion"]})
    async with before(ollama, defaults={"max_tokens": 8}) as gateway:
        for path in ("/api/chat", "/api/generate"):
            for raw in (False, True):
                more = {"messages": [HI]} if path == "/api/chat" else {"prompt": "Hi", "raw": raw}
                body = {"model": "m", "stream": False, "options": {"num_predict": limit}, **more}
                assert (await gateway.ask(body, path)).status == 200
                assert ollama.requests[-1]["options"]["num_predict"] == expected


WAYS: dict[str, tuple[str, Json, list[str]]] = {
    "chat": ("/api/chat", {"messages": [HI], "prompt": "?"}, ["prompt"]),
    "generate": ("/api/generate", {"prompt": "Hi"}, []),
    "raw": ("/api/generate", {"prompt": "Hi", "raw": True, "think": True}, ["think"]),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_warnings_are_told(way: str, stream: bool) -> None:
    """In a header, and with their reasons in the last line."""
    path, more, names = WAYS[way]
    whole: Json = {"choices": [{"index": 0, "text": "Hello", "finish_reason": "stop"}]}
    script = answers(whole) if way == "raw" else said(chunk("Hello")) if stream else answers()
    async with running(script) as gateway:
        options = {"num_ctx": 4096, "creativity": 11}
        body = {"model": "m", "stream": stream, "truncate": True, "keep_alive": "5m", "options": options}
        answer = await gateway.ask({**body, **more}, path)
    last = json.loads(answer.body.splitlines()[-1])
    names = [*names, "truncate", "num_ctx", "creativity", "keep_alive"]
    assert [each["text"].partition(":")[0] for each in last["ctxgate"]["warnings"]] == names
    assert answer.headers["x-ctxgate-dropped-options"] == ", ".join(sorted(names))


async def test_an_answer_that_got_everything_has_no_warnings() -> None:
    async with running(answers(completion("Hello"))) as gateway:
        answer = await gateway.ask(
            {"model": "m", "stream": False, "messages": [HI], "options": {"seed": 1}}, "/api/chat"
        )
    assert "ctxgate" not in answer.json
    assert "x-ctxgate-dropped-options" not in answer.headers


@pytest.mark.parametrize("option", ["typical_p", "repeat_last_n", "mirostat", "mirostat_tau", "num_keep", "logit_bias"])
def test_llama_cpp_reads_them(option: str, real: str) -> None:
    """It names the field that it can't read."""
    with httpx.Client(base_url=real, timeout=PATIENCE) as http:
        for path, more in (("/api/chat", {"messages": [HI]}), ("/api/generate", {"prompt": "Hi", "raw": True})):
            body = {"model": "tiny", "stream": False, "options": {option: "x", "num_predict": 2}, **more}
            answer = http.post(path, json=body)
            named = "n_keep" if option == "num_keep" else option
            if option == "logit_bias":  # of which it reads what it can
                assert answer.status_code == 200
            else:
                assert (answer.status_code, named in answer.json()["error"]) == (400, True), answer.text


def test_penalties_over_the_whole_context(real: str) -> None:
    """Ollama writes it -1, as llama.cpp did."""
    for path, more in (("/api/chat", {"messages": [HI]}), ("/api/generate", {"prompt": "Hi", "raw": True})):
        body = {"model": "tiny", "stream": False, "options": {"repeat_last_n": -1, "num_predict": 2}, **more}
        answer = httpx.post(f"{real}{path}", json=body, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        assert "ctxgate" not in answer.json()


@pytest.mark.parametrize("top", [None, 0, 2, 5])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", ["chat", "generate", "raw"])
def test_logprobs(way: str, stream: bool, top: int | None, real: str) -> None:
    body: Json = {"model": "tiny", "stream": stream, "logprobs": True, "options": {"num_predict": 4}}
    body |= {} if top is None else {"top_logprobs": top}
    body |= {"messages": [HI]} if way == "chat" else {"prompt": "Hi", "raw": way == "raw"}
    with httpx.Client(base_url=real, timeout=PATIENCE) as http:
        answer = http.post("/api/chat" if way == "chat" else "/api/generate", json=body)
    assert answer.status_code == 200
    lines = [json.loads(line) for line in answer.text.splitlines()]
    found = [one for line in lines for one in line.get("logprobs", ())]
    text = "".join(line["message"]["content"] if way == "chat" else line["response"] for line in lines)
    assert len(found) == lines[-1]["eval_count"] == 4
    assert "".join(one["token"] for one in found).startswith(text)
    for one in found:
        assert one["logprob"] <= 0
        assert len(one.get("top_logprobs", ())) == (top or 0)
        assert one.keys() <= {"token", "logprob", "bytes", "top_logprobs"}


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        ({"content": [{"token": "Hi", "logprob": -1.0, "id": 7}]}, [{"token": "Hi", "logprob": -1.0}]),
        (
            {"tokens": ["Hi"], "token_logprobs": [-1.0], "top_logprobs": [{"Hi": -1.0, "Ho": -2.0}]},
            [
                {
                    **{"token": "Hi", "logprob": -1.0, "bytes": [72, 105]},
                    "top_logprobs": [
                        {"token": "Hi", "logprob": -1.0, "bytes": [72, 105]},
                        {"token": "Ho", "logprob": -2.0, "bytes": [72, 111]},
                    ],
                }
            ],
        ),
        ({"tokens": [17], "token_logprobs": [-1.0], "top_logprobs": [{"17": "x"}]}, []),
        ({"tokens": "?", "token_logprobs": None, "top_logprobs": [3]}, []),
        (None, []),
    ],
)
async def test_logprobs_of_other_completions(logprobs: Any, expected: list[Json]) -> None:
    """Servers differ in the form of a completion's log-probabilities."""
    made = {"choices": [{"index": 0, "text": "Hi", "finish_reason": "stop", "logprobs": logprobs}]}
    async with running(answers(made)) as gateway:
        body = {"model": "m", "prompt": "a", "raw": True, "stream": False, "logprobs": True, "top_logprobs": 3}
        answer = (await gateway.ask(body, "/api/generate")).json
        assert (await gateway.engine.asked()).json["logprobs"] == 3
    assert (answer["response"], answer.get("logprobs", [])) == ("Hi", expected)


def test_a_raw_prompt_holds_to_a_format(real: str) -> None:
    with httpx.Client(base_url=real, timeout=PATIENCE) as http:
        body = {"model": "tiny", "prompt": "Hi", "raw": True, "stream": False, "format": {"enum": ["certainly"]}}
        assert http.post("/api/generate", json=body).json()["response"] == '"certainly"'


def test_vectors_tell_too(real: str) -> None:
    with httpx.Client(base_url=real, timeout=PATIENCE) as http:
        for path, text in (("/api/embed", {"input": "a"}), ("/api/embeddings", {"prompt": "a"})):
            body = {"model": "vectors", **text, "truncate": True, "options": {"num_ctx": 9}, "dimension": 3}
            answer = http.post(path, json=body)
            assert answer.status_code == 200
            told = [each["text"].partition(":")[0] for each in answer.json()["ctxgate"]["warnings"]]
            assert told == ["dimension", "truncate", "num_ctx"]
            assert answer.headers["x-ctxgate-dropped-options"] == "dimension, num_ctx, truncate"


async def test_how_long_an_ollama_keeps_the_model() -> None:
    ollama = OllamaDouble({"m": ["completion"], "vectors": ["embedding"]})
    async with before(ollama) as gateway:
        body = {"model": "m", "prompt": "Hi", "raw": True, "stream": False, "keep_alive": "5m"}
        answer = await gateway.ask(body, "/api/generate")
    assert (answer.status, ollama.requests[-1]["keep_alive"]) == (200, "5m")
    async with before(ollama, "vectors", role="embedding") as gateway:
        answer = await gateway.ask({"model": "m", "input": "a", "keep_alive": 60}, "/api/embed")
        assert (answer.status, ollama.requests[-1]["keep_alive"]) == (200, 60)
        for path, empty in (("/api/embed", {"model": "m", "embeddings": []}), ("/api/embeddings", {"embedding": []})):
            for keep in ({}, {"keep_alive": "5m"}, {"keep_alive": 0}, {"keep_alive": -1}):
                answer = await gateway.ask({"model": "m", **keep}, path)
                assert (answer.status, answer.json) == (200, empty)
        assert (await gateway.ask({}, "/v1/models/m/load")).status == 200
    heard = [request.get("keep_alive") for request in ollama.requests[-9:]]
    assert heard == [None, 300, 0, -1, None, 300, 0, -1, None]

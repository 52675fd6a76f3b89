"""Raw mode on real llama.cpp: its parser is left out, so what a model writes in an odd way is still read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.core import Gateway
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.wire.chat import encode
from normalizers.write.grammar import literal
from tests.formats.asking import ASK, WEATHER, Json, Said, ask, chat_request, tool
from tests.formats.conftest import BUILDS, Serve, config, external
from tests.gateway.double import Double, Exchange, completion
from tests.patience import PATIENCE

TOOLS = [tool(WEATHER)]
PARIS = ("get_weather", {"city": "Paris"})
START, END = "<|tool_call_start|>", "<|tool_call_end|>"

# A pre-set text, and the content, reasoning and calls that it means.
DEVIATING: dict[str, tuple[str, str, str, list[Any]]] = {
    "trailing comma": (f"{START}[get_weather(city='Paris',)]{END}", "", "", [PARIS]),
    "raw newline": (f'{START}[get_weather(city="a\nb")]{END}', "", "", [("get_weather", {"city": "a\nb"})]),
    "positional": (f"{START}[get_weather('Paris')]{END}", "", "", [PARIS]),
    "no list": (f"{START}get_weather(city='Paris'){END}", "", "", [PARIS]),
    "no start": ("[get_weather(city='Paris')]", "", "", [PARIS]),
    "text after it": (f"{START}[get_weather(city='Paris')]{END} Done.", "Done.", "", [PARIS]),
    "two blocks": (f"{START}[get_weather(city='Paris')]{END}\n" * 2, "", "", [PARIS, PARIS]),
    "JSON": (f'{START}[{{"name": "get_weather", "arguments": {{"city": "Paris"}}}}]{END}', "", "", [PARIS]),
    "after reasoning": (f"<think>Hm.</think>{START}[get_weather(city='Paris')]{END}", "", "Hm.", [PARIS]),
    "in reasoning": (f"<think>{START}[get_weather()]{END}</think>No.", "No.", f"{START}[get_weather()]{END}", []),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", DEVIATING)
async def test_deviating_text_is_read(llama_cpp: str, name: str, stream: bool) -> None:
    text, content, reasoning, calls = DEVIATING[name]
    async with Gateway(config(external(llama_cpp, "pythonic"))) as gateway:
        said = await ask(gateway, tools=TOOLS, grammar=f"root ::= {literal(text)}", stream=stream, max_tokens=200)
    assert (said.content.strip(), said.reasoning, said.parsed) == (content, reasoning, calls)
    assert said.finish_reason == ("tool_calls" if calls else "stop")


MISMATCH = (
    "{% if tools %}<|im_start|>system\nYou may call tools: <tools>{% for tool in tools %}{{ tool | tojson }}"
    '{% endfor %}</tools>\nAnswer with <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n'
    "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    '{% for call in message.tool_calls or [] %}<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("build", BUILDS)
async def test_a_template_of_another_dialect_spoils_only_the_engines_own_reading(
    serve: Serve, build: str, test_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The model writes LFM2's calls whatever its template says, as fine-tuned models do."""
    template = tmp_path_factory.mktemp("template") / "hermes.jinja"
    template.write_text(MISMATCH)
    url = serve(build, test_model, "--chat-template-file", str(template))
    async with Gateway(config(external(url, "native_json", "engine"), external(url, "pythonic", "raw"))) as gateway:
        by_engine = await attempt(gateway, model="engine", tools=TOOLS)
        raw = await attempt(gateway, model="raw", tools=TOOLS)
    assert isinstance(by_engine, str) or not by_engine.calls
    assert isinstance(raw, Said)
    assert raw.parsed[0][0] == "get_weather"


async def attempt(gateway: Gateway, **fields: Any) -> Said | str:
    try:
        return await ask(gateway, ASK, **fields)
    except GatewayError as error:
        return str(error)


async def test_the_prompt_and_the_count_are_those_of_the_chat_endpoint(llama_cpp: str) -> None:
    models = external(llama_cpp, "native_json", "engine"), external(llama_cpp, "pythonic", "raw")
    async with Gateway(config(*models)) as gateway:
        by_engine = await ask(gateway, model="engine", tools=TOOLS)
        raw = await ask(gateway, model="raw", tools=TOOLS)
        streamed = await ask(gateway, model="raw", tools=TOOLS, stream=True, stream_options={"include_usage": True})
    assert by_engine.parsed == raw.parsed == streamed.parsed
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    for said in (raw, streamed):
        assert by_engine.usage is not None
        assert said.usage is not None
        assert [said.usage[count] for count in counts] == [by_engine.usage[count] for count in counts]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_cut_call_is_told_as_cut(llama_cpp: str, stream: bool) -> None:
    async with Gateway(config(external(llama_cpp, "pythonic"))) as gateway:
        said = await ask(gateway, tools=TOOLS, max_tokens=9, stream=stream)
    assert said.finish_reason == "length"
    assert said.content == ""
    # The text may end before the call has a certain argument; whole and streamed alike it may be there, cut.
    assert [name for name, _ in said.calls] in ([], ["get_weather"])
    assert all(arguments.startswith("{") for _, arguments in said.calls)


THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{{ tools }}<think>\n"
)


@pytest.mark.parametrize("build", BUILDS)
async def test_reasoning_that_the_prompt_has_opened(
    serve: Serve, build: str, test_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    template = tmp_path_factory.mktemp("template") / "thinking.jinja"
    template.write_text(THINKING)
    url = serve(build, test_model, "--chat-template-file", str(template))
    text = f"Let me see. {START}[get_weather()]{END}</think>{START}[get_weather(city='Paris')]{END}"
    async with Gateway(config(external(url, "pythonic"))) as gateway:
        free = await ask(gateway, tools=TOOLS, grammar=f"root ::= {literal(text)}")
        forced = await ask(gateway, tools=TOOLS, tool_choice="required")
    assert free.reasoning.startswith("Let me see.")
    assert free.parsed == [PARIS]
    assert forced.parsed[0][0] == "get_weather"
    assert forced.reasoning == ""


async def test_structured_output_takes_the_chat_endpoint(llama_cpp: str) -> None:
    schema: Json = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    async with Gateway(config(external(llama_cpp, "pythonic"))) as gateway:
        said = await ask(gateway, tools=TOOLS, response_format=wanted)
    assert said.calls or isinstance(json.loads(said.content)["n"], int)


async def test_errors_are_those_of_the_chat_endpoint(llama_cpp: str) -> None:
    async with Gateway(config(external(llama_cpp, "pythonic"))) as gateway:
        with pytest.raises(ProviderInvalidRequest) as caught:
            await ask(gateway, {"role": "user", "content": "word " * 3000}, tools=TOOLS)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(ProviderInvalidRequest, match="failed to parse grammar"):
            await ask(gateway, tools=TOOLS, grammar="root ::= (((")


async def test_a_client_that_leaves_frees_the_slot(llama_cpp: str) -> None:
    # A slow grammar: the answer would go on for 900 tokens.
    request = chat_request(tools=TOOLS, stream=True, max_tokens=900, grammar='root ::= "a"*')
    async with Gateway(config(external(llama_cpp, "pythonic"))) as gateway, httpx.AsyncClient(timeout=PATIENCE) as http:
        with await gateway.chat(request) as run:
            assert await run.payloads()
        deadline = time.monotonic() + PATIENCE
        while any(slot["is_processing"] for slot in (await http.get(f"{llama_cpp}/slots")).json()):
            assert time.monotonic() < deadline


async def test_a_server_without_templates_is_asked_as_usual() -> None:
    async def old_server(exchange: Exchange) -> None:
        if exchange.path == "/v1/chat/completions":
            await exchange.whole(encode(completion(f"{START}[get_weather(city='Paris')]{END}")))
        else:
            await exchange.whole(b'{"error": {"code": 404, "message": "File Not Found"}}', 404)

    async with Double(old_server).serve() as double:
        url = f"http://127.0.0.1:{double.address.port}"
        model = external(url, "pythonic")
        async with Gateway(config(model)) as gateway:
            first = await ask(gateway, tools=TOOLS)
            again = await ask(gateway, tools=TOOLS)
    assert first.parsed == again.parsed == [PARIS]
    paths = [exchange.path for exchange in double.requests]
    assert paths.count("/v1/chat/completions") == 2
    assert paths.count("/apply-template") == 1

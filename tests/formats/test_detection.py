"""`tool_call_format: auto`: what gives a model's format away, from real files and servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.about import UNKNOWN, About, about
from gateway.backends.llamacpp import LlamaCppBackend
from gateway.backends.ollama import OllamaBackend
from gateway.cli.main import main
from gateway.config import Model, load
from gateway.core import Gateway, address_of
from gateway.errors import ProviderInvalidModel
from normalizers import registry
from tests.formats.asking import ASK, WEATHER, ask, tool
from tests.formats.conftest import config, external
from tests.gateway.double import Double, Exchange

TOOLS = [tool(WEATHER)]
HERMES = "{% if tools %}<tool_call>{% endif %}{{ tool_calls }}"


def test_a_gguf_file_tells_template_architecture_and_tokens(test_model: Path) -> None:
    known = about(test_model)
    assert known.architecture == "llama"
    assert "<|tool_call_start|>" in known.tokens
    assert known.mentions("tool_calls")


FOLDERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a template of its own": ({"chat_template.jinja": HERMES}, "hermes", "chat template <tool_call>"),
    "in tokenizer_config": ({"tokenizer_config.json": {"chat_template": HERMES}}, "hermes", "chat template"),
    "its tokens": (
        {"tokenizer_config.json": {"added_tokens_decoder": {"7": {"content": "[TOOL_CALLS]"}}}},
        "mistral",
        "special tokens [TOOL_CALLS]",
    ),
    "its architecture": ({"config.json": {"model_type": "lfm2"}}, "pythonic", "architecture lfm2"),
    "nothing": ({"config.json": {}}, "auto", "not seen yet"),
    "no JSON": ({"config.json": "{"}, "auto", "not seen yet"),
}


@pytest.mark.parametrize("name", FOLDERS)
async def test_a_models_folder(name: str, tmp_path: Path) -> None:
    files, format, evidence = FOLDERS[name]
    for file, content in files.items():
        (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    model = Model(name="m", runtime="mlx", path=tmp_path, tool_call_format="auto")
    async with Gateway(config(model)) as gateway:
        capability = gateway.routes["m"].sender.capability
        await capability.detect()
        assert capability.reader.name == format
        assert capability.evidence.startswith(evidence)


def test_what_is_no_model_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF\x03")
    assert about(tmp_path / "x.gguf") == about(tmp_path / "none.gguf") == about(None) == UNKNOWN
    assert UNKNOWN.mentions("tools")
    assert not About("").mentions("tools")


async def test_llama_cpp_tells_by_its_props(llama_cpp: str) -> None:
    model = external(llama_cpp, "auto")
    backend = LlamaCppBackend(model, address_of(model))
    known = await backend.about()
    await backend.aclose()
    assert known.source == "/props"
    assert known.mentions("<|tool_call_start|>")


async def test_ollama_tells_by_its_show() -> None:
    async def show(exchange: Exchange) -> None:
        assert (exchange.path, exchange.json) == ("/api/show", {"model": "m"})
        await exchange.whole({"template": "{{ .Prompt }}", "model_info": {"general.architecture": "lfm2"}})

    async with Double(show).serve() as double:
        model = Model(name="m", runtime="ollama", base_url=f"http://127.0.0.1:{double.address.port}")
        backend = OllamaBackend(model, address_of(model))
        assert await backend.about() == About("{{ .Prompt }}", "lfm2", (), "/api/show")
        await backend.aclose()


async def test_the_first_answer_is_read_in_the_format_that_was_found(llama_cpp: str) -> None:
    async with Gateway(config(external(llama_cpp, "auto"))) as gateway:
        capability = gateway.routes["m"].sender.capability
        await capability.detect()
        assert (capability.reader.name, capability.evidence.partition(":")[0]) == ("auto", "not seen yet")
        said = await ask(gateway, ASK, tools=TOOLS, tool_choice="required")
        assert said.parsed == [("get_weather", {"city": "Paris", "unit": "celsius"})]
        assert (capability.reader.name, capability.evidence) == (
            "pythonic",
            "chat template <|tool_call_start|> (/props)",
        )


async def test_what_the_file_says_wins(llama_cpp: str) -> None:
    async with Gateway(config(external(llama_cpp, "hermes"))) as gateway:
        await ask(gateway, ASK, tools=TOOLS)
        capability = gateway.routes["m"].sender.capability
        assert (capability.reader.name, capability.evidence) == ("hermes", "config.yaml")


OWN = """
active_model: m
models:
  m:
    runtime: llama.cpp
    base_url: {url}
    tool_call_format:
      name: shouted
      dialect: json
      open: [CALL!]
      close: ["!"]
"""


async def test_a_format_written_in_the_file(llama_cpp: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(OWN.format(url=llama_cpp))
    loaded = load(tmp_path / "config.yaml")
    assert loaded.models["m"].tool_call_format == "shouted"
    grammar = r'root ::= "Yes. CALL!{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}!"'
    async with Gateway(loaded) as gateway:
        said = await ask(gateway, ASK, tools=TOOLS, grammar=grammar)
        forced = await ask(gateway, ASK, tools=TOOLS, tool_choice="required", max_tokens=200)
    assert (said.content.strip(), said.parsed) == ("Yes.", [("get_weather", {"city": "Paris"})])
    assert forced.calls or forced.finish_reason == "length"


def test_the_command_tells_the_formats(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["formats"]) == 0
    out = capsys.readouterr().out
    assert "pythonic" in out
    assert "lfm2" in out
    assert "<|tool_call_start|>[f(x=1)]<|tool_call_end|>" in out
    assert main(["formats", "--json"]) == 0
    rows = {row["format"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["hermes"]["can_be_forced"]
    assert rows["hermes"]["reasoning"] == [["<think>", "</think>"]]


def test_in_a_pipe_each_format_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its own call, and no longer."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["formats"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*registry.names()]
    assert head.index("A CALL") < 130
    assert sorted(map(len, lines))[len(lines) // 2] < 200


@pytest.mark.parametrize("columns", [80, 100, 1000])
def test_the_table_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["formats"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # DeepSeek's bars take two columns each.
    assert max(len(line) + line.count("｜") for line in lines) <= columns
    rows = lines[1 : lines.index("")] if "" in lines else lines[1:]
    assert [row.split()[0] for row in rows if not row.startswith(" ")] == [*registry.names()]
    # Broken calls go on below, in their own column.
    whole = "".join("".join(line[lines[0].index("A CALL") :] for line in lines).split())
    assert '<｜DSML｜parametername="x"string="false">1</｜DSML｜parameter>' in whole
    assert ("<think>…</think>" in "".join(lines)) == (columns == 1000)


def test_the_command_tells_a_models_format_and_why(
    capsys: pytest.CaptureFixture[str], test_model: Path, tmp_path: Path
) -> None:
    assert main(["formats", "--detect", str(test_model)]) == 0
    first, why, read, forced = capsys.readouterr().out.splitlines()
    assert first.endswith("ctxgate-test-tools.gguf: pythonic")
    assert why == "because of its special tokens: <|tool_call_start|> (in ctxgate-test-tools.gguf)"
    assert read == "it reads back all 16 test conversations that the template renders"
    assert forced == "it forces calls as the template writes them"
    assert main(["formats", "--detect", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["format"] is None


def test_the_command_asks_a_server(llama_cpp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"active_model: m\nmodels:\n  m: {{runtime: llama.cpp, base_url: '{llama_cpp}'}}\n")
    assert main(["formats", "--detect", "m", "--config", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "m: pythonic",
        "because of its chat template: <|tool_call_start|> (in /props)",
        "it reads back all 16 test conversations that the template renders",
        "it forces calls as the template writes them",
        "config.yaml says: tool_call_format: native_json",
    ]
    assert main(["formats", "--detect", "nope", "--config", str(file)]) == ProviderInvalidModel.exit_code


def test_the_command_says_that_the_weights_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("active_model: m\nmodels:\n  m: {runtime: llama.cpp, path: x.gguf}\n")
    assert main(["formats", "--detect", "m", "--config", str(file)]) == 1
    assert capsys.readouterr().out == f"m: unknown, since there is no {tmp_path / 'x.gguf'}\n"

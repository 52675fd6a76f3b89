"""`ctxgate chat`, by what it prints and what it sends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import ECHO, answering, config, ctxgate, serving
from tests.cli.upstream import stream, upstream
from tests.conftest import ROOT
from tests.models.pull.sources import Source
from tests.models.pull.sources import serving as source_serving
from tests.ports import free_port

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def test_with_its_own_gateway(tmp_path: Path) -> None:
    config(tmp_path, ECHO + f"server: {{port: {free_port()}}}\n")
    done = ctxgate("chat", cwd=tmp_path, stdin="hello\n\nsecond line\n/quit\nnot this\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\nsecond line\n", "")


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["What is a GGUF file?"], "What is a GGUF file?"),
        (["echo", "What is it?"], "What is it?"),
        (["What", "is", "it"], "What is it"),
        (["Hello!"], "Hello!"),
        (["echo", "echo"], "echo"),
        (["default", "echo"], "echo"),
    ],
)
def test_a_question_in_the_command_line(tmp_path: Path, words: list[str], answer: str) -> None:
    config(tmp_path, ECHO + f"server: {{port: {free_port()}}}\n")
    done = ctxgate("chat", *words, cwd=tmp_path, stdin="nobody reads this\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{answer}\n", "")


@pytest.mark.parametrize("word", ["ecko", "qwen2.5-coder:0.5b"])
def test_a_word_is_a_model(tmp_path: Path, word: str) -> None:
    config(tmp_path, ECHO)
    done = ctxgate("chat", word, cwd=tmp_path)
    assert (done.returncode, f"there is no model '{word}'" in done.stderr) == (1, True)
    assert done.stderr.endswith(f"; to ask that: ctxgate chat default {word}\n")


def test_with_the_running_gateway(tmp_path: Path) -> None:
    port = free_port()
    config(tmp_path, ECHO + f'server: {{port: {port}, api_keys: ["${{KEY}}"]}}\n')
    with serving(tmp_path, KEY="secret"), answering(port):
        done = ctxgate("chat", "echo", cwd=tmp_path, stdin="hello\n", KEY="secret")
        assert (done.returncode, done.stdout) == (0, "hello\n")
        assert ctxgate("chat", cwd=tmp_path, stdin="hello\n", KEY="other").returncode == 13


def test_history(tmp_path: Path) -> None:
    answer = stream({"role": "assistant", "content": "an"}, {"content": "swer"})
    with source_serving(Source(pages={"/v1/chat/completions": answer})) as source:
        upstream(tmp_path, source)
        done = ctxgate("chat", "--system", "be brief", cwd=tmp_path, stdin="one\ntwo\n/new\nthree\n")
    assert done.stdout == "answer\n" * 3, done.stderr
    roles = [[message["role"] for message in json.loads(body)["messages"]] for body in source.bodies]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"], ["system", "user"]]
    assert json.loads(source.bodies[1])["messages"][2]["content"] == "answer"


def test_tool_calls_are_shown_and_their_results_sent(tmp_path: Path) -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    pieces = [{"index": 0, "function": {"arguments": part}} for part in ('{"city": ', '"Paris"}')]
    answer = stream({"content": "I look."}, {"tool_calls": [call]}, *({"tool_calls": [piece]} for piece in pieces))
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    with source_serving(Source(pages={"/v1/chat/completions": answer})) as source:
        upstream(tmp_path, source)
        done = ctxgate("chat", "--tools", "tools.json", cwd=tmp_path, stdin="weather?\n21 degrees\n")
    rounds = done.stdout.split('I look.\n→ get_weather {"city": "Paris"}\n')
    assert rounds[:2] == ["", ""], done.stdout
    first, second = (json.loads(body) for body in source.bodies[:2])
    assert first["tools"] == TOOLS
    assert second["messages"][1]["tool_calls"][0]["function"] == {
        "name": "get_weather",
        "arguments": '{"city": "Paris"}',
    }
    assert second["messages"][2]["content"] == "21 degrees"
    assert second["messages"][2]["tool_call_id"] == second["messages"][1]["tool_calls"][0]["id"]
    # A model that never stops calling is stopped.
    assert "rounds of tool calls" in done.stdout
    assert len(source.bodies) == 8


def test_reasoning_and_control_characters(tmp_path: Path) -> None:
    answer = stream({"reasoning_content": "hm"}, {"content": "a\x1b[2Jb\tc"})
    with source_serving(Source(pages={"/v1/chat/completions": answer})) as source:
        upstream(tmp_path, source)
        done = ctxgate("chat", cwd=tmp_path, stdin="x\n")
    assert done.stdout == "hm\na\ufffd[2Jb\tc\n"


def test_an_engine_that_refuses(tmp_path: Path) -> None:
    with source_serving(Source(statuses={"/v1/chat/completions": 500})) as source:
        upstream(tmp_path, source)
        done = ctxgate("chat", cwd=tmp_path, stdin="x\n")
    assert done.returncode == 69
    assert done.stderr.startswith("ctxgate: ")
    assert "Traceback" not in done.stderr


def test_a_server_that_refuses_the_model_s_key(tmp_path: Path) -> None:
    """The key that the command sends to the gateway has nothing to do with it."""
    with source_serving(Source(statuses={"/v1/chat/completions": 401})) as source:
        upstream(tmp_path, source)
        done = ctxgate("chat", cwd=tmp_path, stdin="x\n")
    assert (done.returncode, "answered 401" in done.stderr, "CTXGATE_KEY" in done.stderr) == (13, True, False), done


def test_no_engine(tmp_path: Path) -> None:
    with source_serving(Source()) as gone:
        pass
    upstream(tmp_path, gone)
    done = ctxgate("chat", cwd=tmp_path, stdin="x\n")
    assert done.returncode == 69
    assert done.stderr.startswith("ctxgate: ")
    assert "Traceback" not in done.stderr


def test_unknown_model(tmp_path: Path) -> None:
    config(tmp_path, ECHO)
    done = ctxgate("chat", "other", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        "ctxgate: there is no model 'other'; config.yaml has: echo; to ask that: ctxgate chat default other\n",
    )


@pytest.mark.parametrize(("text", "message"), [("{", "can't be read as JSON"), ("{}", "must contain a JSON list")])
def test_bad_tools(text: str, message: str, tmp_path: Path) -> None:
    config(tmp_path, ECHO)
    (tmp_path / "tools.json").write_text(text)
    done = ctxgate("chat", "--tools", "tools.json", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.engine("llama.cpp")
def test_a_real_engine(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the extra `llama` isn't installed")
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    default = ROOT / "_models" / "config.yaml"
    done = ctxgate(
        "chat", "ctxgate-test-tools", "--config", default, "--tools", "tools.json",
        cwd=tmp_path, stdin="What is the weather in Paris?\nsunny\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('→ get_weather {"city":'), done.stdout

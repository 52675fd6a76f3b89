"""Objects of models that don't chat, options of those that do, and what a caller is told: on a real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ctx.served import Tree, tree, types

PERSON = {"type": "object", "properties": {"name": {"enum": ["blue", "red"]}}, "required": ["name"]}


@pytest.fixture(scope="module")
def made(module_short: Path, small: dict[str, Any], test_model: Path) -> Iterator[Tree]:
    vectors = {
        "runtime": "llama.cpp", "role": "embedding", "path": str(test_model), "context_window": 256,
        "args": ["--pooling", "mean"],
    }  # fmt: skip
    gone = {"runtime": "llama.cpp", "path": str(module_short / "gone.gguf")}
    config = {**small, "models": {**small["models"], "vectors": vectors, "gone": gone, "qwen2.5:32b": gone}}
    config["ctx"] = {"models": {**small["ctx"]["models"], "vectors": {"object": "acme/vectors"}}}
    with tree(module_short, config) as made:
        yield made


def frames(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def test_an_embedding_model_gives_vectors_and_has_no_socket(made: Tree) -> None:
    done = made.sh("/ctx/model/acme/vectors 'blue penguin'")
    assert (done.returncode, types(frames(done.stdout))) == (0, ["start", "delta", "message", "usage", "done"]), done
    vector = json.loads(frames(done.stdout)[2]["content"][0]["text"])
    assert len(vector) > 16
    assert all(isinstance(number, float) for number in vector)
    done = made.sh("""/ctx/model/acme/vectors -t '{"input": ["blue penguin", "red", "blue penguin"]}'""")
    one, other, same = json.loads(done.stdout)
    assert one == pytest.approx(same, abs=1e-4) != other
    control = made.root / "model/acme/vectors.d"
    assert (control / "cap").read_text() == "embedding\n"
    assert (control / "session").read_text() == "none\n"
    assert "# cortexfs.type=embedding\n" in made.object("acme/vectors").read_text()
    assert not made.object("acme/vectors.sock").exists()


def test_no_socket_even_if_one_is_declared(made: Tree) -> None:
    """A socket that only answers errors must not be."""
    session = made.root / "model/acme/vectors.d/session"
    session.write_text("socket\n")
    done = made.ctxgate("ctx", "sync", "--config", made.config)
    assert (done.returncode, "kept" in done.stderr) == (0, True)
    made.object("debug/echo.sock").unlink()
    made.ctxgate("ctx", "sync", "--config", made.config)
    made.wait(made.object("debug/echo.sock").exists)  # the sockets have been looked at
    assert not made.object("acme/vectors.sock").exists()
    session.write_text("none\n")


def test_options_of_a_chat_are_refused_elsewhere(made: Tree) -> None:
    done = made.sh("/ctx/model/acme/vectors --system x hello")
    assert (done.returncode, frames(done.stdout)[0]["code"]) == (2, "EINVAL")


def test_a_schema_and_a_system_message(made: Tree) -> None:
    (made.folder / "person.json").write_text(json.dumps(PERSON))
    for schema in ("person.json", f"'{json.dumps(PERSON)}'"):
        done = made.sh(f"/ctx/model/main -t --schema {schema} --system 'Be short.' 'Who are you?'")
        assert done.returncode == 0, done
        assert json.loads(done.stdout)["name"] in ("blue", "red")
    done = made.sh("/ctx/model/main --schema '{' hello")
    assert (done.returncode, frames(done.stdout)[0]["code"]) == (2, "EINVAL")
    done = made.sh("/ctx/model/main --schema nothing.json hello")
    assert (done.returncode, "nothing.json can't be read" in done.stdout) == (2, True)


def test_an_answer_that_was_cut_says_so(made: Tree) -> None:
    asked = """'{"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 3}'"""
    done = made.sh(f"/ctx/model/main {asked}")
    assert frames(done.stdout)[-1] == {"type": "done", "run": "r1", "status": "ok", "reason": "length"}
    done = made.sh(f"/ctx/model/main -t {asked}")
    assert done.returncode == 0
    assert "(the answer was cut at the limit of its length: raise max_tokens)\n" in done.stderr
    with made.connect("openai/gpt-4o") as client:
        client.ask(op="send", id="m1", session="cut", input="Say blue penguin")
        assert "reason" not in client.until()[-1]


def test_missing_weights(made: Tree) -> None:
    """A failure that no retry cures, with the cure."""
    for name in ("local/gone", "qwen/qwen2.5-32b"):
        error, done = frames(made.sh(f"/ctx/model/{name} hello").stdout)[-2:]
        assert (error["code"], done["status"]) == ("ENOENT", "error")
        assert "there is no file" in error["message"]
        assert "correct its `path`" in error["message"]


def test_a_removed_socket_comes_back(made: Tree) -> None:
    path = made.object("openai/gpt-4o.sock")
    with made.connect("openai/gpt-4o") as before:
        path.unlink()
        done = made.ctxgate("ctx", "doctor", "--config", made.config)
        assert f"problem: model/openai/gpt-4o: its socket {path} is missing\n    run: ctxgate ctx sync" in done.stdout
        assert made.ctxgate("ctx", "sync", "--config", made.config).returncode == 0
        made.wait(path.exists)
        for client in (before, made.connect("openai/gpt-4o")):
            client.ask(op="ping")
            assert client.frame() == {"type": "pong"}
            client.close()


def test_an_alias_has_a_socket(made: Tree) -> None:
    with made.connect("main") as client:
        client.ask(op="ping")
        assert client.frame() == {"type": "pong"}
    assert (made.root / "model/main.d/id").read_text() == "openai/gpt-4o\n"


def test_a_reload_with_a_model_whose_name_doesn_t_fit(made: Tree) -> None:
    """The model is an object under a name that fits."""
    config = yaml.safe_load(made.config.read_text())
    config["models"]["llama3.2:3b"] = {"runtime": "echo"}
    made.config.write_text(yaml.safe_dump(config))
    made.wait(made.object("debug/llama3.2-3b").exists)
    assert made.sh("/ctx/model/debug/llama3.2-3b -t hello").stdout == "hello\n"


def test_a_slow_start_is_told_to_people(short: Path, small: dict[str, Any]) -> None:
    """The engine starts with the first call; a program that reads events isn't told."""
    slow = short / "slow"
    slow.write_text("#!/bin/sh\nsleep 2\nexit 1\n")
    slow.chmod(0o700)
    models = {"m": {**small["models"]["small"], "command": str(slow), "args": ["{port}"]}}
    with tree(short, {"active_model": "m", "models": models, "ctx": {"models": {"m": {"object": "acme/m"}}}}) as made:
        done = made.sh("/ctx/model/acme/m -t hello")
        assert "m: loading acme/m (starting) ...\n" in done.stderr
        assert done.returncode == 69
        done = made.sh("/ctx/model/acme/m hello")
        assert "loading" not in done.stderr

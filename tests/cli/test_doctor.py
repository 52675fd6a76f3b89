"""`ctxgate doctor`: what it finds, and clients' contracts against a running gateway with the real model."""

from __future__ import annotations

import json
import re
import socket
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gateway.features.clients.contracts import CONTRACTS
from tests.cli.commands import answering, config, ctxgate, serving
from tests.engines.served import served
from tests.ports import free_port
from tests.support.gguf_files import TEMPLATE, file


def written(folder: Path, **more: Any) -> Path:
    file = folder / "doctor.yaml"
    content = {"active_model": "echo", "models": {"echo": {"runtime": "echo"}}, **more}
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, test_model: Path) -> Iterator[Path]:
    """The configuration of a gateway that runs."""
    pytest.importorskip("xllamacpp")
    folder = tmp_path_factory.mktemp("doctor")
    tiny = {"runtime": "llama.cpp", "path": str(test_model), "tool_call_format": "pythonic", "threads": 1}
    large = {**tiny, "context_window": 65536}
    content = {"active_model": "tiny", "models": {"tiny": {**tiny, "context_window": 2048}, "large": large}}
    with served(content, folder, PATH="") as gateway:
        yield written(folder, **content, server={"port": urlsplit(gateway.url).port})


@pytest.mark.some(4)
@pytest.mark.parametrize("client", sorted(CONTRACTS))
def test_a_client(client: str, running: Path) -> None:
    done = ctxgate("doctor", "--config", running, "--client", client, cwd=running.parent)
    contract = CONTRACTS[client]
    assert done.returncode == (69 if contract.first_request else 0), done.stdout + done.stderr
    if contract.first_request:
        assert "wrong  window: tiny has 2048 tokens; " in done.stdout
        assert "(--model NAME), or set context_window: " in done.stdout
        assert "choose large" in done.stdout
    findings = [line for line in done.stdout.splitlines() if line.startswith("ok ")]
    assert len(findings) == len(CONTRACTS[client].steps)
    port = yaml.safe_load(running.read_text())["server"]["port"]
    head, _, rest = done.stdout.partition("\n")
    assert head == f"# {CONTRACTS[client].place}"
    assert f"http://127.0.0.1:{port}" in rest
    assert "<model>" not in rest
    text = re.split(r"\n\n(?:ok|wrong) ", rest)[0]
    reads: dict[str, Any] = {"codex": tomllib.loads, "opencode": json.loads, "continue": yaml.safe_load}
    if client in reads:
        assert "2048" in str(reads[client](text))


def test_a_running_gateway(running: Path) -> None:
    done = ctxgate("doctor", "--config", running, cwd=running.parent, PATH="")
    assert done.returncode == 0, done.stdout
    assert "gateway: runs at" in done.stdout
    assert "ok     model tiny (active): can be started by xllamacpp" in done.stdout
    assert "tiny needs about" in done.stdout


def test_a_window_that_is_large_enough(running: Path) -> None:
    done = ctxgate("doctor", "--config", running, "--client", "codex", "--model", "large", cwd=running.parent, PATH="")
    assert "ok     window: large has 65536 tokens; codex's first request needs room for" in done.stdout


def test_a_window_beyond_the_models(running: Path) -> None:
    done = ctxgate("doctor", "--config", running, cwd=running.parent, PATH="")
    assert re.search(
        r"note   model large: context_window is 65536, but the model was trained for \d+ tokens: .*\n"
        r"       set context_window: \d+, or stretch it with rope:",
        done.stdout,
    )


@pytest.mark.parametrize("uds", [False, True])
def test_a_gateway_elsewhere_is_found(tmp_path: Path, uds: bool) -> None:
    """Started with an address of its own; `status` finds it, too."""
    file = config(tmp_path, f"active_model: e\nmodels: {{e: {{runtime: echo}}}}\nserver: {{port: {free_port()}}}\n")
    port, socket_file = free_port(), tmp_path / "s"
    address = ("--uds", socket_file) if uds else ("--port", str(port))
    with serving(tmp_path, *address), answering(port, socket_file if uds else None):
        where = str(socket_file) if uds else f"http://127.0.0.1:{port}"
        for more in ((), ("--config", file)):
            assert f"ok     gateway: runs at {where}" in ctxgate("doctor", *more, cwd=tmp_path).stdout or not more
            status = ctxgate("status", "--json", *more, cwd=tmp_path)
            assert status.returncode == 0, status.stderr
        assert json.loads(status.stdout)["config"]["file"] == str(file)
        if not uds:
            for given in (("--port", str(port)), ("--url", where), ("--url", f"127.0.0.1:{port}")):
                assert f"ok     gateway: runs at {where}" in ctxgate("doctor", *given, cwd=tmp_path).stdout
            assert ctxgate("status", "--once", "--port", str(port), cwd=tmp_path).returncode == 0
    gone = ctxgate("status", "--config", file, "--once", cwd=tmp_path)
    assert gone.returncode == 69
    assert "start it: ctxgate serve" in gone.stderr


@pytest.mark.parametrize("same_port", [False, True])
def test_the_gateway_of_another_folder_is_told_apart(tmp_path: Path, same_port: bool) -> None:
    """Found by its process, or since it listens where ours would."""
    text = "active_model: e\nmodels: {{e: {{runtime: echo}}}}\nserver: {{port: {}}}\n"
    port = free_port()
    (theirs := tmp_path / "theirs").mkdir()
    (ours := tmp_path / "ours").mkdir()
    other = config(theirs, text.format(port))
    config(ours, text.format(port if same_port else free_port()))
    with serving(theirs), answering(port):
        for given in ((), ("--port", str(port))):
            done = ctxgate("doctor", *given, cwd=ours)
            assert (
                f"note   gateway: runs at http://127.0.0.1:{port}, but with another configuration: {other}"
                in done.stdout
            )
            done = ctxgate("status", "--once", *given, cwd=ours)
            assert (done.returncode, f"has another configuration: {other}" in done.stderr) == (0, True)
        assert ctxgate("status", "--once", cwd=theirs).stderr == ""
        assert "ok     gateway" in ctxgate("doctor", cwd=theirs).stdout


def test_an_address_that_is_none(tmp_path: Path) -> None:
    done = ctxgate("doctor", "--config", written(tmp_path), "--url", "ftp://x", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "ctxgate: --url ftp://x: write it as http://HOST:PORT or https://HOST:PORT\n",
    )


def test_no_gateway(tmp_path: Path) -> None:
    file = written(tmp_path, server={"port": free_port()})
    assert "note   gateway: isn't running" in ctxgate("doctor", "--config", file, cwd=tmp_path).stdout
    done = ctxgate("doctor", "--config", file, "--client", "codex", cwd=tmp_path)
    assert done.returncode == 69
    assert "the gateway doesn't run\n       start it: ctxgate serve" in done.stdout


@pytest.mark.parametrize(
    ("client", "kind", "body", "told"),
    [
        ("ollama", "text/html", "<html>hello</html>", "not a JSON object: '<html>hello</html>'"),
        ("ollama", "application/json", "[" * 100_000, "not a JSON object: '[[["),
        ("opencode", "text/event-stream", "data: [DONE]\n\n", "the stream has nothing but its end"),
        ("opencode", "text/event-stream", "data: <p>\n\ndata: [DONE]\n\n", "not a JSON object: '<p>'"),
        ("opencode", "text/event-stream", 'data: {"error": "no"}\n\ndata: [DONE]\n\n', "ends with an error: no"),
    ],
)
def test_a_server_that_is_no_gateway(client: str, kind: str, body: str, told: str, tmp_path: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        file = written(tmp_path, server={"port": server.server_port})
        done = ctxgate("doctor", "--config", file, "--client", client, cwd=tmp_path, PATH="")
        server.shutdown()
        thread.join()
    assert (done.returncode, done.stderr) == (69, "")
    assert told in done.stdout


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no weights": (
        {"active_model": "a", "models": {"a": {"runtime": "llama.cpp", "path": "nowhere.gguf"}}},
        "put the file there, or correct path:",
    ),
    "no server": (
        {"active_model": "a", "models": {"a": {"runtime": "openai", "base_url": "http://127.0.0.1:9"}}},
        "nothing listens at http://127.0.0.1:9",
    ),
    "no engine": (
        {"active_model": "a", "models": {"a": {"runtime": "llama.cpp", "path": "x", "command": "nowhere-to-be"}}},
        "its engine isn't installed",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong(name: str, tmp_path: Path) -> None:
    """With the active model it is an error, else a note."""
    content, text = WRONG[name]
    (tmp_path / "x").touch()
    port = {"server": {"port": free_port()}}
    done = ctxgate("doctor", "--config", written(tmp_path, **content, **port), cwd=tmp_path)
    assert done.returncode == 69
    assert text in done.stdout
    content = {"active_model": "echo", "models": {"echo": {"runtime": "echo"}, **content["models"]}}
    done = ctxgate("doctor", "--config", written(tmp_path, **content, **port), cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert text in done.stdout


def test_a_port_that_another_program_holds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        file = written(tmp_path, server={"port": other.getsockname()[1]})
        done = ctxgate("doctor", "--config", file, cwd=tmp_path)
    assert done.returncode == 69
    assert "wrong  port: something else listens at" in done.stdout


def test_what_a_template_wants_of_past_calls(tmp_path: Path) -> None:
    call = "{'name': c.function.name, 'arguments': c.function.arguments} | tojson"
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        f"<tool_call>\n{{{{ {call} }}}}\n</tool_call>{{% endfor %}}\n{{% endfor %}}"
    )
    (tmp_path / "m.gguf").write_bytes(file(**{TEMPLATE: template, "general.architecture": "qwen2"}))
    where = config(tmp_path, f"active_model: m\nmodels: {{m: {{runtime: llama.cpp, path: {tmp_path}/m.gguf}}}}\n")
    told = ctxgate("doctor", "--config", where, cwd=tmp_path).stdout
    assert "ok     template of m: it shows the arguments of past calls right only if they come as an object" in told

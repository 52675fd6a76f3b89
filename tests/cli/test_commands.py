"""Help, exit codes, check, models and serve."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from gateway import __version__
from gateway.cli.main import root
from gateway.config import Server, load
from gateway.errors import CATEGORIES, ProviderUnavailable
from tests.cli.commands import ECHO, answering, config, ctxgate, environment, serving
from tests.conftest import ROOT
from tests.models.pull.sources import Source
from tests.models.pull.sources import serving as source_serving
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.support.configurations import LOCALCOWORK


def test_help(tmp_path: Path) -> None:
    done = ctxgate("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("serve", "check", "models", "pull", "chat"):
        assert f"\n  {command} " in done.stdout
        help = ctxgate(command, "--help", cwd=tmp_path)
        assert (help.returncode, help.stderr) == (0, "")
        assert f"examples:\n  ctxgate {command}" in help.stdout
    documented = done.stdout.partition("exit codes:\n")[2]
    codes = {int(line.split()[0]): line for line in documented.splitlines()}
    for name, error in CATEGORIES.items():
        if name != "internal_error":
            assert name.removeprefix("provider_").replace("_", " ") in codes[error.exit_code]
    assert codes.keys() == {0, 70, 130} | {error.exit_code for error in CATEGORIES.values()}


def test_version(tmp_path: Path) -> None:
    assert ctxgate("--version", cwd=tmp_path).stdout == f"ctxgate {__version__}\n"


@pytest.mark.parametrize(
    "args", [["nope"], [], ["serve", "--port", "x"], ["serve", "--port", "65536"], ["pull", "a", "b"]]
)
def test_wrong_command_lines(args: list[str], tmp_path: Path) -> None:
    done = ctxgate(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: ctxgate")


@pytest.mark.parametrize(
    ("args", "suggested"),
    [(["modles"], "models"), (["keys", "lst"], "list"), (["serve", "--prot", "1"], "--port")],
)
def test_the_nearest_spelling_is_suggested(args: list[str], suggested: str, tmp_path: Path) -> None:
    done = ctxgate(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert f"'{suggested}'" in done.stderr.partition("Did you mean")[2]


ACTIONS = {
    "ctx": ["sync", "ls", "cat main", "run main", "export main default", "doctor"],
    "keys": ["add", "list", "revoke k"],
    "tools": ["ls", "call tool.ls {}"],
    "records": ["define m f", "filter m f q", "models", "find m"],
    "room": ["new", "say r hi", "watch r", "history r", "release r"],
}


@pytest.mark.parametrize("words", [[command, *words.split()] for command, each in ACTIONS.items() for words in each])
def test_config_option_before_and_after_an_action(words: list[str]) -> None:
    command, action, *rest = words
    for line in (
        [command, "--config", "c", action, *rest],
        [command, action, "--config", "c", *rest],
        [command, "--config", "other", action, "--config", "c", *rest],
    ):
        assert given_configuration(line) == Path("c")
    assert given_configuration(words) is None


def given_configuration(words: list[str]) -> Path | None:
    """The `config` that the action of this command line receives."""
    with root.make_context("ctxgate", words) as context:
        while isinstance(context.command, click.Group):
            name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
            assert command is not None
            context = command.make_context(name, rest, parent=context)
        found: Path | None = context.params["config"]
        return found


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", ["gateway formats", "gateway check", "gateway --help", "gateway.cli.model_test list"])
def test_closed_stdout(line: str, unbuffered: str, tmp_path: Path) -> None:
    """As in `ctxgate formats | head -1`."""
    config(tmp_path, ECHO)
    unread, output = os.pipe()
    os.close(unread)
    with os.fdopen(output, "wb") as output_file:
        done = subprocess.run(
            [sys.executable, "-m", *line.split()],
            cwd=tmp_path,
            env=environment(tmp_path, PYTHONUNBUFFERED=unbuffered),
            stdout=output_file,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 141
    assert done.stderr == b""


def test_without_a_configuration_the_default_is_read_and_nothing_written(tmp_path: Path) -> None:
    own = f"{tmp_path}/.config/ctxgate/config.yaml"
    done = ctxgate("check", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{own}: 15 models, active: smollm2-135m-instruct\n")
    assert done.stderr == f"ctxgate: no configuration yet, so this is the default; `ctxgate init` writes {own}\n"
    listed = json.loads(ctxgate("models", "--json", cwd=tmp_path).stdout)["models"]
    assert listed[0]["path"] == f"{tmp_path}/.local/share/ctxgate/models/smollm2-135m-instruct.gguf"
    assert [*tmp_path.iterdir()] == []


def test_init_writes_the_default_once(tmp_path: Path) -> None:
    first, own = ctxgate("init", cwd=tmp_path), tmp_path / ".config/ctxgate/config.yaml"
    assert first.returncode == 0
    assert str(own) in first.stderr
    assert f"{tmp_path}/.local/share/ctxgate/models" in first.stderr
    shipped = (ROOT / "_models/config.yaml").read_text("utf-8")
    added = [line for line in own.read_text("utf-8").splitlines() if line not in shipped.splitlines()]
    assert [line.partition(":")[0] for line in added if not line.startswith("#")] == ["models_dir"]
    assert (own.parent / "config.schema.json").read_text("utf-8") == ctxgate("check", "--schema", cwd=tmp_path).stdout
    checked = ctxgate("check", cwd=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, "")
    own.write_text("active_model: e\nmodels: {e: {runtime: echo}}\n", "utf-8")
    again = ctxgate("init", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, f"ctxgate: {own} is there already, and stays as it is\n")
    assert ctxgate("check", cwd=tmp_path).stdout == f"{own}: 1 model, active: e\n"
    assert not [*tmp_path.rglob(".config.yaml-*")]


def test_each_line_of_a_json_log_is_an_object(tmp_path: Path) -> None:
    port = free_port()
    config(
        tmp_path,
        "active_model: m\nmodels: {m: {runtime: llama.cpp, path: m.gguf}, echo: {runtime: echo}}\n"
        f"server: {{port: {port}}}\nlog: {{format: json, level: warning}}\nstate_dir: {tmp_path}/state\n",
    )
    with serving(tmp_path) as process, answering(port):
        assert process.stderr is not None
        messages = [json.loads(process.stderr.readline())["message"] for _ in range(2)]
    assert messages[0].startswith(f"http://127.0.0.1:{port}/v1  active model m (llama.cpp)  ")
    assert messages[1].startswith("m isn't on this machine yet; put it at ")


def test_init_into_a_folder_that_can_t_be_written(tmp_path: Path) -> None:
    (tmp_path / ".config").write_text("a file", "utf-8")
    done = ctxgate("init", cwd=tmp_path)
    assert done.returncode == ProviderUnavailable.exit_code
    assert "XDG_CONFIG_HOME" in done.stderr


def test_check_default(tmp_path: Path) -> None:
    done = ctxgate("check", "--config", ROOT / "_models" / "config.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("config.yaml: 15 models, active: smollm2-135m-instruct\n")


def test_check_finds_the_file_from_below(tmp_path: Path) -> None:
    file = config(tmp_path, ECHO)
    (tmp_path / "a").mkdir()
    assert ctxgate("check", cwd=tmp_path / "a").stdout == f"{file}: 1 model, active: echo\n"


def test_check_shows_all_problems(tmp_path: Path) -> None:
    file = config(tmp_path, "active_model: x\nmodels: {echo: {runtime: ecko, prot: 1}}\n")
    done = ctxgate("check", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.partition(" ")[0] for line in done.stderr.splitlines() if not line.startswith(" ")] == [
        f"{file}:{place}:" for place in ("1:15", "2:26", "2:32")
    ]


def test_check_notes(tmp_path: Path) -> None:
    file = config(tmp_path, LOCALCOWORK)
    done = ctxgate("check", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout.splitlines()[0] == f"note: {file}:3:1: enabled_servers is ignored: read by LocalCowork's app only"
    )
    assert done.stdout.splitlines()[-1] == f"{file}: 4 models, active: lfm-big"


def test_check_schema(tmp_path: Path) -> None:
    done = ctxgate("check", "--schema", cwd=tmp_path)
    assert json.loads(done.stdout)["$schema"].startswith("https://json-schema.org/")


def test_models_with_replicas(tmp_path: Path) -> None:
    def holding(*loaded: str) -> Source:
        pages = {"tags": ["q:latest", "r:1b"], "ps": loaded}
        return Source(pages={f"/api/{name}": ollama_models(held) for name, held in pages.items()})

    with (
        source_serving(holding()) as one,
        source_serving(holding("q:latest")) as two,
        source_serving(Source()) as empty,
    ):
        both, with_empty = f"['{one.url}', '{two.url}']", f"['{one.url}', '{empty.url}']"
        config(
            tmp_path,
            f"""\
active_model: q
models:
  q: {{runtime: ollama, replicas: {both}}}
  r: {{runtime: ollama, replicas: {both}, model_name: 'r:1b'}}
  s: {{runtime: ollama, replicas: {both}, model_name: s}}
  t: {{runtime: ollama, replicas: {with_empty}, model_name: q}}
server: {{port: {free_port()}}}
""",
        )
        listed = json.loads(ctxgate("models", "--json", cwd=tmp_path).stdout)["models"]
    assert {model["name"]: (model["installed"], model["running"]) for model in listed} == {
        "q": (True, True), "r": (True, False), "s": (False, False), "t": (None, False),
    }  # fmt: skip


def ollama_models(names: Sequence[str]) -> tuple[str, bytes]:
    return "application/json", json.dumps({"models": [{"name": name} for name in names]}).encode()


def test_models_with_nothing_running(tmp_path: Path) -> None:
    config(
        tmp_path,
        f"""\
active_model: here
models:
  here: {{runtime: llama.cpp, path: here.gguf, context_window: 2048, tool_call_format: pythonic}}
  gone: {{runtime: llama.cpp, path: gone.gguf, pull: {{hub: a/b, file: c}}}}
  lost: {{runtime: mlx, path: lost}}
  away: {{runtime: openai, port: {free_port()}}}
  echo: {{runtime: echo}}
server: {{port: {free_port()}}}
""",
    )
    (tmp_path / "_models" / "here.gguf").write_bytes(b"x" * 2_100_000)
    done = ctxgate("models", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "   MODEL  RUNTIME    FORMAT       CONTEXT  INSTALLED    RUNNING",
        "*  here   llama.cpp  pythonic     2048     2.1 MB       no",
        "   gone   llama.cpp  native_json  -        no, pull it  no",
        "   lost   mlx        native_json  -        no           no",
        "   away   openai     native_json  -        -            no",
        "   echo   echo       native_json  -        yes          -",
        "",
        "gateway: not running",
    ]


def test_models_with_servers(tmp_path: Path) -> None:
    ollama = Source(
        pages={
            "/api/tags": ("application/json", b'{"models": [{"name": "a:latest"}, {"name": "b:7b"}]}'),
            "/api/ps": ("application/json", b'{"models": [{"name": "b:7b"}]}'),
        }
    )
    port = free_port()
    with source_serving(ollama), source_serving(Source()) as other, socket.create_server(("127.0.0.1", 0)) as silent:
        config(
            tmp_path,
            f"""\
active_model: a
models:
  a: {{runtime: ollama, base_url: "{ollama.url}"}}
  b: {{runtime: ollama, base_url: "{ollama.url}", model_name: "b:7b"}}
  c: {{runtime: ollama, base_url: "{ollama.url}"}}
  other: {{runtime: openai, base_url: "{other.url}/v1"}}
  silent: {{runtime: openai, port: {silent.getsockname()[1]}}}
server: {{port: {port}}}
""",
        )
        with serving(tmp_path), answering(port):
            done = ctxgate("models", "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert report["gateway"] == {"url": f"http://127.0.0.1:{port}", "running": True}
    assert [(row["name"], row["active"], row["installed"], row["running"]) for row in report["models"]] == [
        ("a", True, True, False),
        ("b", False, True, True),
        ("c", False, False, False),
        ("other", False, None, True),
        ("silent", False, None, False),
    ]


def test_serve(tmp_path: Path) -> None:
    file = config(tmp_path, ECHO)
    port = free_port()
    with serving(tmp_path, "--port", str(port)) as process, answering(port) as client:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line == f"ctxgate: http://127.0.0.1:{port}/v1  active model echo (echo)  {file}\n"
        request = {"model": "default", "messages": [{"role": "user", "content": "hello"}]}
        answer = client.post("/v1/chat/completions", json=request).json()
        assert answer["choices"][0]["message"]["content"] == "hello"
    assert process.returncode in (0, -15)


def test_serve_on_a_socket(tmp_path: Path) -> None:
    config(tmp_path, ECHO)
    with serving(tmp_path, "--uds", "s"), answering(uds=tmp_path / "s") as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == "echo"
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600


def test_health_shows_engine_states(tmp_path: Path) -> None:
    config(tmp_path, "active_model: m\nmodels: {m: {runtime: llama.cpp, path: x.gguf}, e: {runtime: echo}}\n")
    with serving(tmp_path, "--uds", "s"), answering(uds=tmp_path / "s") as client:
        assert client.get("/health").json()["engines"] == {"m": "stopped"}
        client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
        assert client.get("/health").json()["engines"] == {"m": "failed"}


def test_serve_reports_missing_weights(tmp_path: Path) -> None:
    config(tmp_path, "active_model: m\nmodels: {m: {runtime: llama.cpp, path: x.gguf, pull: {hub: a/b, file: c}}}\n")
    with serving(tmp_path, "--uds", tmp_path / "s") as process, answering(uds=tmp_path / "s"):
        assert process.stderr is not None
        process.stderr.readline()
        assert process.stderr.readline() == "ctxgate: m isn't on this machine yet; fetch it: ctxgate pull m\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines, and no key is asked for"),
        (["--uds", "x", "--port", "1"], "--uds excludes --host and --port"),
    ],
)
def test_serve_refuses(args: list[str], message: str, tmp_path: Path) -> None:
    config(tmp_path, ECHO)
    done = ctxgate("serve", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


def test_pull_has_nothing_to_do(tmp_path: Path) -> None:
    config(tmp_path, ECHO)
    done = ctxgate("pull", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no pull" in done.stderr
    done = ctxgate("pull", "other", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "ctxgate: there is no model 'other'; config.yaml has: echo\n")


def test_the_default_server_is_safe() -> None:
    assert load(ROOT / "_models" / "config.yaml", {}).server == Server()
    assert Server().unsafe() is None

"""What `load` accepts, and the normal form of its result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config import ConfigError, Engines, Model, PullSource, Residence, Role, Rope, Runtime, Server, find, load
from gateway.config.values import Group
from gateway.errors import ProviderInvalidModel, ProviderInvalidRequest
from gateway.features.agents.settings import Rooms
from gateway.features.ctx.settings import Ctx
from tests.patience import PATIENCE
from tests.support.configurations import LOCALCOWORK, OURS


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        file = tmp_path / "config.yaml"
        file.write_text(dedent(text), encoding="utf-8")
        return file

    return write


def test_the_entry_of_the_adr(write: Any) -> None:
    config = load(
        write("""\
            active_model: lfm25-24b
            models:
              lfm25-24b:
                path: ~/.localcowork/models/lfm25-24b-q4_k_m.gguf
                runtime: llama.cpp
                port: 8080
                context_window: 32768
                tool_call_format: pythonic  # triggers normalizer
            """),
        {},
    )
    assert config.resolve(None) == Model(
        name="lfm25-24b",
        runtime="llama.cpp",
        path=Path("/home/ann/.localcowork/models/lfm25-24b-q4_k_m.gguf"),
        base_url="http://127.0.0.1:8080",
        port=8080,
        context_window=32768,
        tool_call_format="pythonic",
    )
    assert config.server == Server()
    assert config.notes == ()


def test_localcowork_comes_out_as_ours(write: Any) -> None:
    theirs = load(write(LOCALCOWORK), {})
    ours = load(write(OURS), {})
    assert replace(theirs, notes=(), seen=ours.seen) == ours
    assert theirs.models["lfm-big"] == Model(
        name="lfm-big",
        runtime="llama.cpp",
        path=Path("/home/ann/Projects/_models/lfm-big-q4.gguf"),
        base_url="http://localhost:8080",
        port=8080,
        context_window=32768,
        tool_call_format="pythonic",
        defaults={"temperature": 0.1, "max_tokens": 4096},
        capabilities=("text", "tool_calling"),
        display_name="LFM big",
        engine=Runtime(
            command=("llama-server",),
            args=("--model", "{model_path}", "--port", "8080", "--ctx-size", "32768"),
            health_check="http://localhost:8080/health",
            startup_timeout_seconds=60,
        ),
    )
    assert ours.notes == ()


def test_what_only_their_app_reads_is_noted(write: Any) -> None:
    config = load(write(LOCALCOWORK), {})
    lines = LOCALCOWORK.splitlines()
    noted = sorted(lines[note.line - 1].strip().partition(":")[0] for note in config.notes)
    assert noted == sorted(
        ["enabled_servers", "enabled_tools", "fallback_chain", "orchestrator", "two_pass_tool_selection", "platform"]
        + ["tool_temperature", "force_json_response", "deprecated", "role", "fine_tuned"]
        + ["estimated_vram_gb"] * 4
    )
    for note in config.notes:
        key = lines[note.line - 1].strip().partition(":")[0]
        assert note.message.startswith(f"{key} is ignored: ")
        assert lines[note.line - 1][note.column - 1 :].startswith(key)


def test_roles(write: Any) -> None:
    """A request without a model gets the first of the required role; LocalCowork's own roles are ignored."""
    text = "active_model: m\nmodels:\n  m: {runtime: echo, role: tool_router}\n  e: {runtime: echo, role: embedding}\n"
    config = load(write(text), {})
    assert [(model.name, model.role) for model in config.models.values()] == [("m", "chat"), ("e", "embedding")]
    assert [note.message for note in config.notes] == ["role is ignored: read by LocalCowork's app only"]
    assert (config.resolve(None).name, config.resolve(None, "embedding").name) == ("m", "e")
    wrong: list[tuple[str | None, Role]] = [("e", "chat"), ("m", "embedding"), (None, "rerank")]
    for name, role in wrong:
        with pytest.raises(ProviderInvalidRequest, match="for that, config") as caught:
            config.resolve(name, role)
        assert str(caught.value).endswith("no model (one with role: rerank)") == (role == "rerank")
    with pytest.raises(ConfigError, match="active_model: e is for embedding"):
        load(write(text.replace("active_model: m", "active_model: e")), {})


def test_a_model_may_have_several_roles(write: Any) -> None:
    text = """\
        active_model: m
        models:
          e: {runtime: echo, role: embedding}
          m: {runtime: echo, role: [speech, chat, transcription, speech]}
        """
    config = load(write(text), {})
    model = config.models["m"]
    assert (model.role, model.roles) == ("speech", ("speech", "chat", "transcription"))
    assert (
        config.resolve(None, "transcription") is config.resolve(None, "speech") is config.resolve("m", "chat") is model
    )
    with pytest.raises(ProviderInvalidRequest, match="m is for speech and chat and transcription, not for image"):
        config.resolve("m", "image")
    with pytest.raises(ProviderInvalidRequest, match=r"e is for embedding, not for speech; for that, .* has: m$"):
        config.resolve("e", "speech")


def test_another_address_with_the_gateway_s_port_is_allowed(write: Any) -> None:
    file = write("""\
        active_model: a
        models:
          a: {runtime: openai, port: 4000}
          b: {runtime: openai, base_url: "http://gpu:4000"}
        server: {host: 192.0.2.1, api_keys: ["${KEY}"]}
        """)
    assert load(file, {"KEY": "k"}).models["a"].port == 4000


ADDRESSES = {
    "a port": ("runtime: openai\nport: 9", ("http://127.0.0.1:9", None, 9)),
    "loopback": ("runtime: openai\nbase_url: http://localhost:9/v1/", ("http://localhost:9", None, 9)),
    "loopback without a port": ("runtime: openai\nbase_url: http://[::1]/v1", ("http://[::1]", None, 80)),
    "port and the same URL": (
        "runtime: openai\nport: 9\nbase_url: http://127.0.0.1:9",
        ("http://127.0.0.1:9", None, 9),
    ),
    "a prefix": ("runtime: openai\nbase_url: https://h/openai/v1", ("https://h/openai", None, None)),
    "another machine": ("runtime: llama.cpp\nbase_url: http://10.0.0.2:8080", ("http://10.0.0.2:8080", None, None)),
    "a socket": ("runtime: openai\nbase_url: unix:/run/vllm.sock", (None, Path("/run/vllm.sock"), None)),
    "a socket as a URL": ("runtime: openai\nbase_url: unix:///run/vllm.sock", (None, Path("/run/vllm.sock"), None)),
    "a socket at home": ("runtime: openai\nbase_url: unix:~/s", (None, Path("/home/ann/s"), None)),
    "Ollama's own": ("runtime: ollama", ("http://127.0.0.1:11434", None, 11434)),
    "none": ("runtime: llama.cpp\npath: x", (None, None, None)),
    "a custom backend": ("runtime: my.mod:Backend", (None, None, None)),
}


@pytest.mark.parametrize("case", ADDRESSES)
def test_addresses(case: str, write: Any) -> None:
    entry, expected = ADDRESSES[case]
    model = load(write("active_model: m\nmodels:\n  m:\n    " + entry.replace("\n", "\n    ") + "\n"), {}).resolve("m")
    assert (model.base_url, model.uds, model.port) == expected


@pytest.mark.parametrize(
    ("written", "canonical"),
    [("llama.cpp", "llama.cpp"), ("llama_cpp", "llama.cpp"), ("llama_cpp_python", "llama-cpp-python"), ("mlx", "mlx")],
)
def test_runtimes(written: str, canonical: str, write: Any) -> None:
    assert (
        load(write(f"active_model: m\nmodels: {{m: {{runtime: {written}, path: x}}}}\n")).resolve("m").runtime
        == canonical
    )


def test_paths_start_at_the_file_or_at_models_dir(write: Any, tmp_path: Path) -> None:
    text = "active_model: m\nmodels: {m: {runtime: mlx, path: a/../b}, n: {runtime: mlx, path: /c}}\n"
    config = load(write(text), {})
    assert [model.path for model in config.models.values()] == [tmp_path / "b", Path("/c")]
    assert config.models_dir is None
    config = load(write(text + "models_dir: d\n"), {})
    assert [model.path for model in config.models.values()] == [tmp_path / "d" / "b", Path("/c")]
    assert config.models_dir == tmp_path / "d"


def test_all_paths_start_at_models_dir(write: Any) -> None:
    config = load(
        write("""\
            active_model: m
            models_dir: /d
            models:
              m: {runtime: openai, replicas: ["unix:~/a", "unix:/b"], ca_file: ca.pem}
            server: {uds: s}
            ctx: {root: ctx}
            rooms: {secret_key_file: key}
            state_dir: ~/state
            """),
        {},
    )
    assert config.models["m"].replicas == ("unix:/home/ann/a", "unix:/b")
    assert [config.models["m"].ca_file, config.server.uds, config.section(Ctx).root] == [
        *map(Path, ("/d/ca.pem", "/d/s", "/d/ctx"))
    ]
    assert (config.section(Rooms).secret_key_file, config.state_dir) == (Path("/d/key"), Path("/home/ann/state"))


def test_values_are_immutable(write: Any) -> None:
    """Lists of the file come out as tuples, so that values can be shared and compared."""
    config = load(
        write("""\
            active_model: m
            models: {m: {runtime: echo, aliases: [n], capabilities: [text], fallbacks: [], strip_params: [seed]}}
            server: {cors_origins: ["*"]}
            rooms: {tools: {allow_hosts: [A.example]}}
            ctx: {models: {m: {driver: {exec: [debug]}}}, users: {"7": {x: m}}}
            """),
        {},
    )
    model = config.models["m"]
    assert (model.aliases, model.capabilities, model.fallbacks, model.strip_params) == (
        ("n",),
        ("text",),
        (),
        ("seed",),
    )
    assert (config.server.cors_origins, config.section(Rooms).tools.allow_hosts) == (("*",), ("a.example",))
    ctx = config.section(Ctx)
    assert (ctx.models["m"].driver, ctx.users) == ({"exec": ("debug",)}, {7: {"x": "m"}})


def test_variables(write: Any) -> None:
    text = """\
        active_model: ${MODEL:-m}
        models:
          m:
            runtime: openai
            port: "${PORT}"
            temperature: ${HEAT:-0.5}
            model_name: "${NUMBER}-${NOTHING:-x}"
            display_name: ${EMPTY}
            seed: ${NONE:-}
            api_key: ${KEY:-}
            extra_body: {n: "${NUMBER}", s: "${WORD}"}
        """
    environ = {"PORT": "9", "NUMBER": "7", "EMPTY": "", "WORD": "w", "HEAT": ""}
    model = load(write(text), environ).resolve(None)
    assert (model.port, model.model_name, model.display_name) == (9, "7-x", None)
    assert model.defaults == {"temperature": 0.5, "n": 7, "s": "w"}
    assert [type(value) for value in model.defaults.values()] == [float, int, str]
    assert model.api_key is None


def test_secrets(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = ModuleType("keyring")
    errors = ModuleType("keyring.errors")

    class KeyringError(Exception):
        pass

    def get_password(service: str, name: str) -> str | None:
        if name == "locked":
            raise KeyringError("hidden")
        return {("ctxgate", "mine"): "from-keychain"}.get((service, name))

    errors.KeyringError = KeyringError  # type: ignore[attr-defined]
    keyring.errors, keyring.get_password = errors, get_password  # type: ignore[attr-defined]
    text = """\
        active_model: m
        models:
          m: {runtime: openai, port: 1, api_key: "%s"}
        server: {host: 0.0.0.0, api_keys: ["${ONE}", "${TWO:-}", "keychain:mine"]}
        """
    environ = {"ONE": "from-environment"}
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    config = load(write(text % "keychain:mine"), environ)
    key = config.resolve("m").api_key
    assert key is not None
    assert key.get_secret_value() == "from-keychain"
    assert [key.get_secret_value() for key in config.server.api_keys] == ["from-environment", "from-keychain"]
    assert "from-" not in repr(config)

    for name, message in {"locked": "can't be read", "other": "has no other"}.items():
        with pytest.raises(ConfigError, match=message) as caught:
            load(write(text % f"keychain:{name}"), environ)
        assert [(p.line, p.column) for p in caught.value.problems] == [(3, 42)]
        assert "hidden" not in str(caught.value)

    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match="needs the package keyring"):
        load(write(text % "keychain:mine"), environ)


@pytest.mark.parametrize("value", ["sk-1\n", "a\r\nX-Other: b", " sk", "schlüssel", "a\x00b"])
def test_a_secret_that_no_header_can_hold_is_refused(write: Any, value: str) -> None:
    text = """\
        active_model: m
        models:
          m: {runtime: openai, port: 1, api_key: "${ONE}"}
        server: {api_keys: ["${ONE}"]}
        """
    with pytest.raises(ConfigError, match="no HTTP header can") as caught:
        load(write(text), {"ONE": value})
    assert [(p.line, p.column) for p in caught.value.problems] == [(3, 42), (4, 21)]
    assert value not in str(caught.value)


def test_launch_settings_are_merged(write: Any) -> None:
    config = load(
        write("""\
            active_model: a
            models:
              a: {runtime: llama.cpp, path: x, args: [--own], threads: 3, kv_cache_type: q4_0, mmap: true,
                  rope: {scaling: yarn, factor: 4}}
              b: {runtime: llama.cpp, path: x, command: "~/bin/server 'two words'", args: [--alone, 1.5]}
              c: {runtime: mlx, path: x}
            runtimes:
              llama.cpp:
                {args: [--general], threads: 2, parallel: 4, startup_timeout_seconds: 9, kv_cache_type: q8_0, batch: 64}
            """),
        {},
    )
    a, b, c = (model.engine for model in config.models.values())
    assert a == Runtime(
        args=("--general", "--own"),
        threads=3,
        parallel=4,
        startup_timeout_seconds=9,
        kv_cache_type="q4_0",
        batch=64,
        mmap=True,
        rope=Rope(scaling="yarn", factor=4),
    )
    assert b == Runtime(
        command=("/home/ann/bin/server", "two words"),
        args=("--alone", "1.5"),
        threads=2,
        parallel=4,
        startup_timeout_seconds=9,
        kv_cache_type="q8_0",
        batch=64,
    )
    assert c == Runtime()


def test_engine_memory(write: Any) -> None:
    config = load(
        write("""\
            active_model: a
            models:
              a: {runtime: llama.cpp, path: x, memory: 1.5 GB, pinned: true, group: big}
              b: {runtime: llama.cpp, path: x, idle_ttl_seconds: 7}
              c: {runtime: llama.cpp, path: x, memory: 512MiB}
              d: {runtime: llama.cpp, path: x, memory: 1000000}
            runtimes:
              llama.cpp: {idle_ttl_seconds: 60, stall_timeout_seconds: 5}
            engines:
              memory_budget: 12 GB
              queue_length: 3
              groups: {big: {excludes: [big, small]}, small: {excludes: []}}
            """),
        {},
    )
    a, b, c, d = (model.residence for model in config.models.values())
    assert a == Residence(memory=1_500_000_000, pinned=True, group="big", idle_ttl_seconds=60, stall_timeout_seconds=5)
    assert (b.idle_ttl_seconds, c.memory, d.memory) == (7, 512 * 1024**2, 1_000_000)
    groups = {"big": Group(excludes=("big", "small")), "small": Group(excludes=())}
    assert config.engines == Engines(memory_budget=12_000_000_000, queue_length=3, groups=groups)
    assert config.engines.excludes == {"big": {"big", "small"}, "small": set()}


def test_placeholders_are_filled_in() -> None:
    runtime = Runtime(args=("--model={model_path}", "{port}", "{other}", "x"))
    assert runtime.arguments({"model_path": "/a {port}", "port": 8}) == ("--model=/a {port}", "8", "{other}", "x")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("{hub: a/b}", PullSource(kind="hub", name="a/b")),
        (
            "{hub: a/b, revision: v1, file: c.gguf, sha256: " + "0a" * 32 + "}",
            PullSource(kind="hub", name="a/b", version="v1", file="c.gguf", sha256="0a" * 32),
        ),
        ("{package: p==1.0, file: p/c.gguf}", PullSource(kind="package", name="p", version="1.0", file="p/c.gguf")),
    ],
)
def test_pull_sources(written: str, value: PullSource, write: Any) -> None:
    text = f"active_model: m\nmodels: {{m: {{runtime: llama.cpp, path: x, pull: {written}}}}}\n"
    assert load(write(text)).resolve("m").pull == value


def test_anchors_and_merge_keys(write: Any) -> None:
    config = load(
        write("""\
            active_model: a
            models:
              a: &base {runtime: openai, port: 1, seed: 1}
              b:
                <<: *base
                seed: 2
            """),
        {},
    )
    assert config.models["b"] == replace(config.models["a"], name="b", defaults={"seed": 2})


def test_models_may_share_a_port_and_it_is_noted(write: Any) -> None:
    config = load(
        write("""\
            active_model: a
            models:
              a: {runtime: llama.cpp, path: x, port: 8080}
              b: {runtime: llama.cpp, path: y, port: 8080}
              c: {runtime: openai, port: 8080}
            """),
        {},
    )
    assert [(note.line, note.message) for note in config.notes] == [
        (4, "b and a share port 8080: the one that starts second gets another port")
    ]


OLLAMAS: dict[str, tuple[str, str, list[str]]] = {
    "windows": ("context_window: 4096", "context_window: 8192", ["context_window (8192 and 4096)"]),
    "a window and none": ("context_window: 4096", "seed: 1", ["context_window (none and 4096)"]),
    "threads": ("threads: 2", "threads: 4", ["threads (4 and 2)"]),
    "layers and batches": (
        "gpu_layers: 1, batch: 64",
        "gpu_layers: 2, batch: 32",
        ["gpu_layers (2 and 1)", "batch (32 and 64)"],
    ),
    "the same": ("context_window: 4096", "context_window: 4096, seed: 2", []),
    "requests' fields": ("temperature: 1", "temperature: 0", []),
    "two servers": ("context_window: 4096", "base_url: 'http://10.0.0.1:11434', context_window: 8192", []),
    "two models": ("context_window: 4096", "model_name: other, context_window: 8192", []),
    "two runtimes": ("context_window: 4096", "runtime: openai, context_window: 8192", []),
}


@pytest.mark.parametrize("name", OLLAMAS)
def test_entries_that_load_one_model_of_ollama_differently_are_noted(write: Any, name: str) -> None:
    first, second, noted = OLLAMAS[name]
    rest = {"runtime": "ollama", "model_name": "qwen3:4b"}
    given = second + "".join(f", {key}: '{value}'" for key, value in rest.items() if f"{key}:" not in second)
    config = load(
        write(f"""\
            active_model: a
            models:
              a: {{runtime: ollama, model_name: 'qwen3:4b', {first}}}
              b: {{{given.replace("runtime: openai", "runtime: openai, base_url: 'http://10.0.0.1'")}}}
            """),
        {},
    )
    assert [note.line for note in config.notes] == [4] * len(noted)
    for note, what in zip(config.notes, noted, strict=True):
        assert f"b and a are one model of Ollama, qwen3:4b, with a different {what}" in note.message


def test_resolve(write: Any) -> None:
    config = load(write("active_model: b\nmodels: {a: {runtime: echo}, b: {runtime: echo, model_name: x}}\n"), {})
    assert [config.resolve(name).name for name in (None, "", "default", "a")] == ["b", "b", "b", "a"]
    assert [model.upstream_name for model in config.models.values()] == ["a", "x"]
    with pytest.raises(ProviderInvalidModel, match=r"there is no model 'c'; config\.yaml has: a, b"):
        config.resolve("c")


def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "project" / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    with pytest.raises(ConfigError) as caught:
        find(below)
    assert str(below) in str(caught.value)
    assert str(tmp_path / "xdg" / "ctxgate" / "config.yaml") in str(caught.value)
    assert "--config" in str(caught.value)

    own = tmp_path / "xdg" / "ctxgate" / "config.yaml"
    own.parent.mkdir(parents=True)
    own.touch()
    assert find(below) == own
    project = tmp_path / "project" / "_models" / "config.yaml"
    project.parent.mkdir()
    project.touch()
    assert find(below) == project


@pytest.mark.parametrize("keys", ["", ', api_keys: ["${EMPTY}", "${NONE:-}"]'])
def test_listening_to_others_without_a_key_is_noted(write: Any, keys: str) -> None:
    """Only `ctxgate serve` refuses it, since only it knows whether `ctxgate keys` has any."""
    text = "active_model: m\nmodels:\n  m: {runtime: echo}\nserver: {host: 10.0.0.1%s}\n"
    (note,) = load(write(text % keys), {"EMPTY": ""}).notes
    assert (note.line, note.column) == (4, 10)
    assert "10.0.0.1 can be reached from other machines, and no key is asked for" in note.message


def test_unsafe_servers() -> None:
    hosts = {"127.0.0.1": False, "localhost": False, "::1": False, "0.0.0.0": True, "192.168.1.2": True, "box": True}
    assert {host: Server(host=host).unsafe() is not None for host in hosts} == hosts
    assert Server(host="0.0.0.0", uds=Path("/run/x")).unsafe() is None
    assert Server(host="0.0.0.0").unsafe(keys=True) is None


def test_values_are_light() -> None:
    """Code that only reads the values doesn't import YAML or pydantic."""
    code = "import sys, gateway.config; print([m for m in ('yaml', 'pydantic', 'httpx', 'lark') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == "[]"


def test_a_start_builds_only_what_the_file_has(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("active_model: one\nserver: {port: 1}\nmodels: {one: {runtime: echo}}\n", "utf-8")
    script = (
        "import os, sys; from gateway.config import load; load(sys.argv[1])\n"
        "from gateway.config.file import keys_of; from gateway.config.values import *\n"
        "print(*('form' in vars(keys_of(kind)) for kind in (Server, Engines, Pull)))\n"
        "print('gateway.features.agents.settings' in sys.modules)\n"
        "print(os.environ['PYDANTIC_DISABLE_PLUGINS'])"
    )
    command, environ = [sys.executable, "-c", script, str(file)], os.environ | {"PYDANTIC_DISABLE_PLUGINS": "theirs"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "True False False\nFalse\ntheirs\n"

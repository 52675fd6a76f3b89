"""`ctxgate add` and `remove` as processes: a file, a folder, a server that runs, the hub, Ollama."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from gateway.config import load
from gateway.features.models.pull.download import ATTEMPTS
from tests.conftest import ROOT
from tests.engines.served import served
from tests.models.inventory.commands import FILE, ctxgate
from tests.models.pull.sources import Source, serving
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.support.hub import COMMIT, REPO, hub

ENGINE = ROOT / "gateway/engines/xllamacpp_server.py"


def other_lines_stay(config: Path) -> None:
    """Every line of FILE is still there, in its order."""
    lines = iter(config.read_text().splitlines())
    assert all(line in lines for line in FILE.splitlines())


def test_a_local_file(config: Path, test_model: Path) -> None:
    done = ctxgate(config, "add", test_model, "--no-smoke", "--name", "tiny")
    assert done.returncode == 0, done.stderr
    size, context, template, dialect, memory = done.stdout.splitlines()[:5]
    assert size == "tiny: 2.1 MB, architecture llama"
    assert context.split(None, 1) == ["context", "trained on 1,024 tokens, serves 1,024"]
    assert template.split(None, 1) == ["template", "it has one, with a place for tools"]
    assert "pythonic, because of its special tokens: <|tool_call_start|>" in dialect
    assert re.fullmatch(r"  memory +needs about [\d.]+ MB of [\d.]+ GB: it fits", memory)
    assert done.stdout.splitlines()[-1] == "clients use it by base URL http://127.0.0.1:4000/v1 and model tiny"
    other_lines_stay(config)
    model = load(config, {}).models["tiny"]
    assert (model.path, model.context_window, model.tool_call_format) == (test_model, 1024, "pythonic")
    assert "  # its special tokens: <|tool_call_start|>" in config.read_text()
    again = ctxgate(config, "add", test_model, "--no-smoke")
    assert (again.returncode, "already has these weights, as tiny" in again.stderr) == (2, True)


def test_it_is_tested(config: Path, tmp_path: Path, test_model: Path) -> None:
    """The test model knows few of the suite's tools: its score is low, but it has one."""
    done = ctxgate(config, "add", test_model, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "ctxgate-test-tools: smoke" in done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (results["target"]["model"], results["suite"]["id"]) == ("ctxgate-test-tools", "smoke")
    assert len((tmp_path / "out" / "samples.jsonl").read_text().splitlines()) >= 20
    assert done.stdout.splitlines()[-1].endswith("model ctxgate-test-tools")
    assert "ctxgate tune ctxgate-test-tools --tools --apply finds the best way to show it tools (" in done.stdout


@pytest.mark.slow
def test_ways_of_showing_tools_are_tried(config: Path, tmp_path: Path, test_model: Path) -> None:
    """The suite's first results are those of the first way: nothing is asked twice."""
    done = ctxgate(config, "add", test_model, "--try-tools", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    rows = [line.lstrip("* ").partition("  ")[0] for line in done.stdout.splitlines() if " of 20 " in line]
    assert rows[-4:] == ["template", "system", "system, examples", "both, examples"]
    assert done.stderr.count("tools in: ") == 3
    other_lines_stay(config)
    lines = [line for line in config.read_text().splitlines() if "tool_prompt" in line]
    assert len(lines) == (0 if "No way is better than template" in done.stdout else 1)
    assert all("# smoke 2" in line for line in lines)


def test_a_dry_run_changes_nothing(config: Path, test_model: Path) -> None:
    done = ctxgate(config, "add", test_model, "--dry-run", "--window", "512")
    assert done.returncode == 0
    shown = yaml.safe_load(done.stdout.partition("\n\n")[2])
    assert shown["ctxgate-test-tools"]["tool_call_format"] == "pythonic"
    assert shown["ctxgate-test-tools"]["context_window"] == 512
    assert config.read_text() == FILE


def test_a_folder(config: Path, tmp_path: Path, test_model: Path) -> None:
    folder = tmp_path / "Tiny MLX"
    folder.mkdir()
    settings = {"model_type": "lfm2", "max_position_embeddings": 128_000, "quantization": {"bits": 4}}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    (folder / "chat_template.jinja").write_text("{{ tools }}{{ messages }}")
    done = ctxgate(config, "add", folder, "--no-smoke")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tiny-mlx: 1.0 kB, 4 bit, architecture lfm2")
    model = load(config, {}).models["tiny-mlx"]
    assert (model.runtime, model.path, model.tool_call_format) == ("mlx", folder, "pythonic")
    assert model.context_window == 32_768


def test_a_folder_whose_format_nobody_knows(config: Path, tmp_path: Path) -> None:
    template = Path(__file__).parents[2] / "normalizers" / "unknown" / "json_list_and_thoughts.jinja"
    folder = tmp_path / "brand-new"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "brandnew", "max_position_embeddings": 4096}))
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    (folder / "chat_template.jinja").write_text(template.read_text())
    done = ctxgate(config, "add", folder, "--no-smoke")
    assert done.returncode == 0, done.stderr
    shown = next(line for line in done.stdout.splitlines() if "dialect" in line)
    assert "derived, because of its chat template: <|actions|> (in brand-new)" in shown
    assert shown.endswith("it reads back all 19 test conversations that the template renders")
    written = load(config, {}).models["brand-new"].custom_format
    assert written is not None
    assert (written.dialect, written.open, written.think) == ("json", ("<|actions|>",), (("<ponder>", "</ponder>"),))


NOT_MODELS = {
    "nothing there": ("nowhere.gguf", None, 1, "there is no"),
    "no model": ("a.txt", b"hello", 2, "is not a GGUF file"),
    "half a file": ("a.gguf", b"GGUF\3\0\0\0", 2, "ends in the middle"),
}


@pytest.mark.parametrize("case", NOT_MODELS)
def test_what_is_no_model(case: str, config: Path, tmp_path: Path) -> None:
    name, content, code, message = NOT_MODELS[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = ctxgate(config, "add", name)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert config.read_text() == FILE


@contextmanager
def llama_server(model: Path, log: Path) -> Iterator[str]:
    """The embedded engine, as somebody else starts it."""
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
    port = free_port()
    command = [sys.executable, str(ENGINE), "--model", str(model), "--port", str(port), "--ctx-size", "512"]
    with (
        log.open("wb") as out,
        subprocess.Popen([*command, "--threads", "1"], stdout=out, stderr=out, stdin=subprocess.PIPE) as process,
    ):
        try:
            with httpx.Client(transport=httpx.HTTPTransport(retries=30), timeout=PATIENCE) as client:
                while client.get(f"http://127.0.0.1:{port}/health").status_code != 200:
                    assert process.poll() is None, log.read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(PATIENCE)


def test_a_llama_server_that_runs(config: Path, tmp_path: Path, test_model: Path) -> None:
    with llama_server(test_model, tmp_path / "engine.log") as url:
        done = ctxgate(config, "add", f"{url}/v1", "--name", "theirs", "--no-smoke")
        assert done.returncode == 0, done.stderr
        assert "serves 512" in done.stdout
        assert "pythonic" in done.stdout
        other_lines_stay(config)
        model = load(config, {}).models["theirs"]
        assert (model.runtime, model.base_url, model.tool_call_format) == ("llama.cpp", url, "pythonic")
        data = yaml.safe_load(config.read_text())
        with served({**data, "active_model": "theirs"}, tmp_path) as gateway:
            body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
            answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=PATIENCE)
    assert answer.json()["choices"][0]["message"]["content"]


def test_servers_that_are_none(config: Path) -> None:
    done = ctxgate(config, "add", f"http://127.0.0.1:{free_port()}")
    assert (done.returncode, "nothing answers at" in done.stderr) == (69, True)
    with serving(Source(pages={"/": ("text/html", b"hello")})) as page:
        done = ctxgate(config, "add", page.url)
    assert (done.returncode, "a server that ctxgate supports" in done.stderr) == (2, True)
    listing = {"object": "list", "data": [{"id": "a"}, {"id": "b"}]}
    with serving(Source(pages={"/v1/models": ("application/json", json.dumps(listing).encode())})) as several:
        done = ctxgate(config, "add", several.url, "--model", "b", "--window", "512")
        assert (done.returncode, "a server has its own window" in done.stderr) == (2, True)
        done = ctxgate(config, "add", several.url)
        assert (done.returncode, "choose one by --model; it has: a, b" in done.stderr) == (1, True)
        assert ctxgate(config, "add", several.url, "--model", "b", "--no-smoke").returncode == 0
    model = load(config, {}).models["b"]
    assert (model.runtime, model.upstream_name, model.base_url) == ("openai", "b", several.url)


# The hub


@pytest.fixture
def weights(test_model: Path) -> bytes:
    return test_model.read_bytes()


def left(config: Path) -> list[str]:
    return sorted(path.name for path in config.parent.iterdir() if path != config)


QUANTS = ("tiny-Q2_K.gguf", "tiny-Q4_K_M.gguf", "mmproj-F16.gguf")


def test_the_hub(config: Path, weights: bytes) -> None:
    told = {"architecture": "llama", "context_length": 1024, "chat_template": "<|tool_call_start|>{{ tools }}"}
    with serving(hub(weights, names=QUANTS, gguf=dict(told))) as source:
        dry = ctxgate(config, "add", f"hf:{REPO}", "--dry-run", hub=source)
        assert "  dialect   pythonic, because of its chat template" in dry.stdout
        assert "needs at least" in dry.stdout
        assert not [asked for asked in source.asked if "/resolve/" in asked]
        done = ctxgate(config, "add", f"hf:{REPO}", "--no-smoke", hub=source)
        assert done.returncode == 0, done.stderr
        wrong = ctxgate(config, "add", f"hf:{REPO}:Q6_K", hub=source)
        assert f"{REPO} has no Q6_K; it has: Q2_K, Q4_K_M" in wrong.stderr
        twice = ctxgate(config, "add", f"hf:{REPO}:q4_k_m", hub=source)
        assert "config.yaml already has it, as tiny-q4_k_m" in twice.stderr
    assert re.search(r"tiny-Q4_K_M.gguf +100 %", done.stderr)
    assert left(config) == ["tiny-Q4_K_M.gguf"]
    other_lines_stay(config)
    model = load(config, {}).models["tiny-q4_k_m"]
    assert model.path is not None
    assert model.path.read_bytes() == weights
    assert model.pull is not None
    assert (model.pull.name, model.pull.version, model.pull.file) == (REPO, COMMIT, "tiny-Q4_K_M.gguf")
    assert model.pull.sha256 is not None
    assert model.context_window == 1024


def test_a_folder_of_the_hub(config: Path) -> None:
    with serving(hub(b"x" * 1000, names=("model.safetensors",))) as source:
        done = ctxgate(config, "add", f"hf:{REPO}", "--no-smoke", hub=source)
        assert done.returncode == 0, done.stderr
        quant = ctxgate(config, "add", f"hf:{REPO}:Q4_0", hub=source)
        assert "has no GGUF files to choose Q4_0 from" in quant.stderr
    model = load(config, {}).models["tiny"]
    assert model.runtime == "mlx"
    assert left(config) == ["Tiny-GGUF"]
    assert left(config.parent / "Tiny-GGUF" / "config.json") == ["model.safetensors"]


TAKEN: dict[str, tuple[tuple[str, ...], str]] = {
    "a folder": (("model.safetensors",), "Tiny-GGUF/thesis.txt"),
    "a file where a folder would be": (("model.safetensors",), "Tiny-GGUF"),
    "a folder of a model that hears": (("model.bin",), "Tiny-GGUF/thesis.txt"),
    "a folder where a file would be": (("tiny.gguf",), "tiny.gguf/thesis.txt"),
    "a file": (("tiny.gguf",), "tiny.gguf"),
    "a first part": (("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"), "a-00001-of-00002.gguf"),
    "a second part": (("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"), "a-00002-of-00002.gguf"),
    "a voice": (("voice.onnx", "voice.onnx.json"), "voice.onnx"),
    "a voice's settings": (("voice.onnx", "voice.onnx.json"), "voice.onnx.json"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_there_already_does_not_become_the_model(name: str, config: Path) -> None:
    names, mine = TAKEN[name]
    before, file = config.read_text(), config.parent / mine
    file.parent.mkdir(exist_ok=True)
    file.write_text("ten years of work")
    with serving(hub(b"x" * 1000, names=names)) as source:
        done = ctxgate(config, "add", f"hf:{REPO}", "--no-smoke", hub=source)
    assert (done.returncode != 0, "exists" in done.stderr or "is there already" in done.stderr) == (True, True), done
    assert (file.read_text(), config.read_text()) == ("ten years of work", before)
    assert left(config) == [mine.partition("/")[0]]


NAMES = [("model.safetensors",), ("model.safetensors", "more/model.safetensors")]


@pytest.mark.parametrize("names", NAMES)
def test_what_an_earlier_add_has_fetched_is_taken(names: tuple[str, ...], config: Path) -> None:
    """An entry that couldn't be written, or was removed, leaves the weights."""
    with serving(hub(b"x" * 1000, names=names)) as source:
        assert ctxgate(config, "add", f"hf:{REPO}", "--no-smoke", hub=source).returncode == 0
        assert ctxgate(config, "remove", "tiny").returncode == 0
        source.asked.clear()
        again = ctxgate(config, "add", f"hf:{REPO}", "--no-smoke", hub=source)
        assert again.returncode == 0, again.stderr
        assert not [asked for asked in source.asked if f"{names[0]}" in asked]
        pull = load(config, {}).models["tiny"].pull
        assert pull is not None
        assert (pull.name, pull.version) == (REPO, COMMIT)
        assert ctxgate(config, "remove", "tiny").returncode == 0
        mine = config.parent / "Tiny-GGUF" / names[0]
        mine.write_bytes(b"y" * 1000)
        assert "is there already" in ctxgate(config, "add", f"hf:{REPO}", "--no-smoke", hub=source).stderr
        mine.write_bytes(b"x" * 1000)
        (mine.parent / "thesis.txt").symlink_to("nowhere")
        assert "is there already" in ctxgate(config, "add", f"hf:{REPO}", "--no-smoke", hub=source).stderr


def test_parts_that_arrived_are_taken(config: Path, weights: bytes) -> None:
    names = ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf")
    (config.parent / names[1]).write_bytes(weights)
    with serving(hub(weights, names=names)) as source:
        ctxgate(config, "add", f"hf:{REPO}", "--no-smoke", hub=source)
    assert [asked for asked in source.asked if "/resolve/" in asked and names[0] in asked]
    assert not [asked for asked in source.asked if "/resolve/" in asked and names[1] in asked]


def test_a_link_to_nothing_is_not_replaced(config: Path) -> None:
    (config.parent / "Tiny-GGUF").symlink_to("nowhere")
    with serving(hub(b"x" * 1000, names=("model.safetensors",))) as source:
        done = ctxgate(config, "add", f"hf:{REPO}", "--no-smoke", hub=source)
    assert "Tiny-GGUF is there already" in done.stderr


def test_the_same_file_that_is_there_already_is_taken(config: Path, weights: bytes) -> None:
    (config.parent / "tiny.gguf").write_bytes(weights)
    with serving(hub(weights, gguf={"architecture": "llama"})) as source:
        done = ctxgate(config, "add", f"hf:{REPO}", "--no-smoke", hub=source)
    assert done.returncode == 0, done.stderr
    assert not [asked for asked in source.asked if "/resolve/" in asked]


def test_a_torn_download_goes_on_where_it_stopped(config: Path, weights: bytes) -> None:
    source = hub(weights)
    source.cuts = [1_000_000] + [0] * ATTEMPTS
    with serving(source):
        torn = ctxgate(config, "add", f"hf:{REPO}", "--no-smoke", hub=source)
        assert torn.returncode == 69
        assert "it continues where this one stopped" in torn.stderr
        assert config.read_text() == FILE
        assert len(left(config)) == 1
        source.asked.clear()
        done = ctxgate(config, "add", f"hf:{REPO}", "--no-smoke", hub=source)
    assert done.returncode == 0, done.stderr
    asked = [each for each in source.asked if each.startswith("GET") and "/resolve/" in each]
    assert asked == [f"GET /{REPO}/resolve/{COMMIT}/tiny.gguf bytes=1000000-"]
    assert left(config) == ["tiny.gguf"]
    assert (config.parent / "tiny.gguf").read_bytes() == weights


def test_a_wrong_hash_is_said_and_nothing_is_left(config: Path, weights: bytes) -> None:
    with serving(hub(weights, promised="b" * 64)) as source:
        done = ctxgate(config, "add", f"hf:{REPO}", hub=source)
    assert (done.returncode, "isn't what was promised" in done.stderr) == (1, True)
    assert left(config) == []
    assert config.read_text() == FILE


def test_a_full_disk_is_said_and_nothing_is_left(config: Path, weights: bytes) -> None:
    with serving(hub(weights)) as source:
        done = ctxgate(config, "add", f"hf:{REPO}", maximum=1_000_000, hub=source)
    assert (done.returncode, "no more space" in done.stderr) == (69, True), done.stderr
    assert left(config) == []
    assert config.read_text() == FILE


def test_the_hub_is_searched(config: Path) -> None:
    with serving(hub()) as source:
        done = ctxgate(config, "models", "--available", "tiny tools", hub=source)
    assert done.returncode == 0, done.stderr
    assert f"hf:{REPO}" in done.stdout
    assert "12,345" in done.stdout
    offline = ctxgate(config, "models", "--available", "tiny", hub=source)
    assert (offline.returncode, "can't be reached" in offline.stderr) == (69, True)


# Ollama


def ollama(*, has: bool, capabilities: tuple[str, ...] = ("completion", "tools"), parameters: str = "") -> Source:
    shown = {
        "template": "{{ .Tools }}",
        "details": {"parameter_size": "4.0B", "quantization_level": "Q4_K_M"},
        "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
        "capabilities": [*capabilities],
        "parameters": parameters,
    }
    tags = {"models": [{"name": "qwen3:4b", "size": 2_600_000_000}]}
    pages = {
        "/api/tags": ("application/json", json.dumps(tags).encode()),
        "/api/delete": ("application/json", b"{}"),
        "/api/pull": ("application/x-ndjson", b'{"status": "pulling x", "total": 9}\n{"status": "success"}\n'),
    }
    if has:
        pages["/api/show"] = ("application/json", json.dumps(shown).encode())
    return Source(pages=pages)


@pytest.mark.parametrize("has", [True, False])
def test_ollama(has: bool, config: Path) -> None:
    with serving(ollama(has=has)) as source:
        done = ctxgate(config, "add", "ollama:qwen3:4b", "--no-smoke", OLLAMA_HOST=source.url)
        assert done.returncode == 0, done.stderr
        assert ("POST /api/pull" in source.asked) is not has
        if has:
            assert done.stdout.startswith("qwen3-4b: 2.60 GB, 4.0B parameters, Q4_K_M, architecture qwen3")
    model = load(config, {}).models["qwen3-4b"]
    assert (model.runtime, model.upstream_name, model.base_url) == ("ollama", "qwen3:4b", source.url)
    assert model.tool_call_format == "native_json"
    assert (model.pull is None) is has, "what was there before may be nobody else's: it can't be pulled again"
    other_lines_stay(config)


SHOWN: dict[str, tuple[tuple[str, ...], str, list[str], tuple[str, ...]]] = {
    "tools": (("completion", "tools"), "", ["tools; calls", "no effort", "no images"], ("text", "tool_calling")),
    "nothing more": (("completion",), "", ["tools only with a tool_call_format and `tool_prompt: system`"], ("text",)),
    "thinks": (
        ("completion", "tools", "thinking"),
        "",
        ["; effort; no images"],
        ("text", "tool_calling", "reasoning"),
    ),
    "sees": (("completion", "vision"), "", ["; images"], ("text", "vision")),
    "everything": (
        ("completion", "tools", "thinking", "vision", "insert"),
        'stop  "x"\nnum_ctx                        8192',
        ["tools; calls that are required; JSON by a schema; effort; images", "serves 8,192"],
        ("text", "tool_calling", "vision", "reasoning"),
    ),
    "vectors": (("embedding",), "", [], ("embeddings",)),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_a_model_of_ollama_can_is_shown(name: str, config: Path) -> None:
    able, parameters, told, capabilities = SHOWN[name]
    with serving(ollama(has=True, capabilities=able, parameters=parameters)) as source:
        done = ctxgate(config, "add", "ollama:qwen3:4b", "--no-smoke", OLLAMA_HOST=source.url)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(None, 1) for line in done.stdout.splitlines() if line.startswith("  "))
    assert lines["can"] == ", ".join(able)
    assert "trained on 40,960 tokens" in lines["context"]
    assert "template" in lines
    assert ("works" in lines) is (able != ("embedding",))
    for words in told:
        assert words in done.stdout
    assert load(config, {}).models["qwen3-4b"].capabilities == capabilities


def test_no_ollama(config: Path) -> None:
    done = ctxgate(config, "add", "ollama:qwen3:4b", OLLAMA_HOST=f"127.0.0.1:{free_port()}")
    assert (done.returncode, "start it with `ollama serve`" in done.stderr) == (69, True)


# Removing


def test_remove(config: Path, tmp_path: Path, test_model: Path) -> None:
    mine = config.parent / "mine.gguf"
    mine.write_bytes(test_model.read_bytes())
    assert ctxgate(config, "add", mine, "--no-smoke").returncode == 0
    kept = ctxgate(config, "remove", "mine")
    assert f"its weights stay at {mine}" in kept.stdout
    assert config.read_text() == FILE
    assert ctxgate(config, "add", mine, "--no-smoke").returncode == 0
    (config.parent / ".mine.gguf.0123456789ab.part").write_bytes(b"half")
    gone = ctxgate(config, "remove", "mine", "--weights")
    assert f"deleted {mine}" in gone.stdout
    assert (left(config), config.read_text()) == ([], FILE)
    active = ctxgate(config, "remove", "echo")
    assert (active.returncode, "is the active model" in active.stderr) == (2, True)
    assert ctxgate(config, "remove", "nobody").returncode == 1


def test_weights_that_another_model_needs_stay(config: Path, test_model: Path) -> None:
    file = config.parent / "big.gguf"
    file.write_bytes(test_model.read_bytes())
    text = FILE.replace("  big:", "  same: {runtime: llama.cpp, path: big.gguf}\n  big:")
    config.write_text(text)
    done = ctxgate(config, "remove", "same", "--weights")
    assert (done.returncode, "big needs the weights of same" in done.stderr) == (2, True)
    assert (file.exists(), config.read_text()) == (True, text)


def test_a_model_that_another_key_names_stays(config: Path) -> None:
    text = FILE.replace("runtime: echo}", "runtime: echo, fallbacks: [big]}")
    config.write_text(text)
    done = ctxgate(config, "remove", "big")
    assert done.returncode == 2
    assert "there is no model big" in done.stderr
    assert config.read_text() == text
    assert not [name for name in os.listdir(config.parent) if name.startswith(".config")]


def test_what_would_have_to_leave_the_memory(tmp_path: Path, config: Path, test_model: Path) -> None:
    """By the state of the running gateway, whose engine holds memory."""
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
    tiny = {"runtime": "llama.cpp", "path": str(test_model), "context_window": 512, "threads": 1}
    file, another = tmp_path / "another.yaml", tmp_path / "another.gguf"
    another.write_bytes(test_model.read_bytes())
    running = {"active_model": "tiny", "models": {"tiny": tiny}, "engines": {"memory_budget": "100 MB"}}
    with served({**running, "state_dir": str(tmp_path / "state")}, tmp_path) as gateway:
        assert httpx.post(f"{gateway.url}/v1/models/tiny/load", timeout=PATIENCE).json()["state"] == "ready"
        file.write_text(yaml.safe_dump({**running, "server": {"port": httpx.URL(gateway.url).port}}))
        beside = ctxgate(file, "add", another, "--dry-run")
        assert beside.returncode == 0, beside.stderr
        assert "of 100 MB: tiny would have to make room" in beside.stdout
    running["engines"] = {"memory_budget": "40 MB"}
    file.write_text(yaml.safe_dump({**running, "server": {"port": free_port()}}))
    alone = ctxgate(file, "add", another, "--dry-run")
    assert "which is more than engines may hold (39 MB)" in alone.stdout

"""`ctxgate remove --weights`, `DELETE /api/delete`: only the model's own weights go, its entry after Ollama's model."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.engines.served import served
from tests.models.inventory.commands import FILE, ctxgate
from tests.models.pull.sources import Source, serving
from tests.patience import PATIENCE
from tests.ports import free_port


def added(config: Path, entries: str) -> str:
    """Writes more models into the file; returns its text."""
    text = FILE.replace("  # it repeats\n", f"{entries}\n  # it repeats\n")
    config.write_text(text)
    return text


def ollama() -> Source:
    return Source(pages={"/api/delete": ("application/json", b"{}")})


def test_of_two_ollamas_the_models_own_is_asked(config: Path, tmp_path: Path) -> None:
    uds = tmp_path / "o.sock"
    added(config, f"  q: {{runtime: ollama, base_url: 'unix:{uds}', model_name: 'qwen3:4b'}}")
    with serving(ollama()) as other, serving(ollama(), uds) as own:
        done = ctxgate(config, "remove", "q", "--weights", OLLAMA_HOST=other.url)
        assert done.returncode == 0, done.stderr
        assert (other.asked, own.asked) == ([], ["DELETE /api/delete"])
        assert [json.loads(body) for body in own.bodies] == [{"model": "qwen3:4b"}]
    assert config.read_text() == FILE


def test_of_a_model_with_replicas_every_ollama_is_asked(config: Path) -> None:
    with serving(ollama()) as one, serving(ollama()) as two:
        added(config, f"  q: {{runtime: ollama, replicas: ['{one.url}', '{two.url}'], model_name: 'qwen3:4b'}}")
        done = ctxgate(config, "remove", "q", "--weights")
        assert done.returncode == 0, done.stderr
        assert (one.asked, two.asked) == (["DELETE /api/delete"], ["DELETE /api/delete"])


def test_while_ollama_is_down_the_entry_stays(config: Path) -> None:
    port = free_port()
    text = added(config, f"  q: {{runtime: ollama, base_url: 'http://127.0.0.1:{port}', model_name: 'qwen3:4b'}}")
    for _ in range(2):
        done = ctxgate(config, "remove", "q", "--weights")
        assert (done.returncode, "start it with `ollama serve`" in done.stderr) == (69, True)
    assert config.read_text() == text


def test_over_http_the_entry_stays_too(tmp_path: Path) -> None:
    q = {"runtime": "ollama", "base_url": f"http://127.0.0.1:{free_port()}", "pull": {"ollama": "qwen3:4b"}}
    config = {"active_model": "echo", "models": {"echo": {"runtime": "echo"}, "q": q}, "state_dir": str(tmp_path / "s")}
    with served(config, tmp_path) as gateway:
        for _ in range(2):
            answer = httpx.request("DELETE", f"{gateway.url}/api/delete", json={"model": "q"}, timeout=PATIENCE)
            assert (answer.status_code, "ollama serve" in answer.json()["error"]) == (503, True)


@pytest.mark.parametrize("other", ["runtime: echo, fallbacks: [q]", "runtime: ollama, model_name: 'qwen3:4b'"])
def test_ollama_keeps_what_an_entry_needs(other: str, config: Path) -> None:
    with serving(ollama()) as own:
        at = f", base_url: '{own.url}'" if "ollama" in other else ""
        entry = f"  q: {{runtime: ollama, base_url: '{own.url}', model_name: 'qwen3:4b'}}\n"
        text = added(config, f"{entry}  other: {{{other}{at}}}")
        done = ctxgate(config, "remove", "q", "--weights")
        assert done.returncode == 2, done.stderr
        assert own.asked == []
    assert config.read_text() == text


@pytest.mark.parametrize("name", ["qwen3", "qwen3:latest"])
@pytest.mark.parametrize("where", ["base_url: '{}'", "replicas: ['{}', 'http://127.0.0.1:9']"])
def test_another_entry_of_the_same_ollama_needs_it_too(where: str, name: str, config: Path) -> None:
    with serving(ollama()) as own:
        at = where.format(own.url.replace("127.0.0.1", "localhost"))
        entry = f"  q: {{runtime: ollama, base_url: '{own.url}', model_name: 'qwen3'}}\n"
        added(config, f"{entry}  other: {{runtime: ollama, {at}, model_name: '{name}'}}")
        done = ctxgate(config, "remove", "q", "--weights")
        assert (done.returncode, "other needs the weights of q" in done.stderr) == (2, True), done.stderr
        assert own.asked == []


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("mlx-a", "runtime: llama.cpp, path: mlx-a/gguf/b.gguf"),
        ("mlx-a", "runtime: llama.cpp, path: link/gguf/b.gguf"),
        ("mlx-a", "runtime: llama.cpp, path: big.gguf, draft: {model: mlx-a/gguf/b.gguf}"),
        ("link", "runtime: llama.cpp, path: link/gguf/b.gguf"),
        (".", "runtime: echo"),
    ],
    ids=["inside", "inside by a link", "its draft", "by the link that goes", "config.yaml"],
)
def test_a_folder_with_what_another_needs_stays(path: str, other: str, config: Path) -> None:
    inside = config.parent / "mlx-a" / "gguf" / "b.gguf"
    inside.parent.mkdir(parents=True)
    inside.write_bytes(b"b")
    (config.parent / "link").symlink_to("mlx-a")
    text = added(config, f"  a: {{runtime: mlx, path: {path}}}\n  b: {{{other}}}")
    done = ctxgate(config, "remove", "a", "--weights")
    assert (done.returncode, "needs the weights of a" in done.stderr) == (2, True), done.stderr
    assert (inside.read_bytes(), config.read_text()) == (b"b", text)


def test_a_link_goes_and_what_it_leads_to_stays(config: Path) -> None:
    folder, link = config.parent / "mlx-a", config.parent / "link"
    folder.mkdir()
    link.symlink_to("mlx-a")
    added(config, "  a: {runtime: mlx, path: link}\n  b: {runtime: mlx, path: mlx-a}")
    done = ctxgate(config, "remove", "a", "--weights")
    assert done.returncode == 0, done.stderr
    assert (link.is_symlink(), folder.is_dir()) == (False, True)


def test_downloads_of_other_models_go_on(config: Path) -> None:
    own = [".Qwen3.0123456789ab.part", ".Qwen3.0123456789ab.hub", ".Qwen3.old", ".Qwen3.writing"]
    others = [".Qwen3.gguf.0123456789ab.part", ".Qwen3.gguf.old", ".Qwen3-00001-of-00002.gguf.0123456789ab.part"]
    for name in (*own, *others):
        (config.parent / name).write_bytes(b"half")
    added(config, "  a: {runtime: mlx, path: Qwen3}")
    done = ctxgate(config, "remove", "a", "--weights")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in config.parent.iterdir()} == {"config.yaml", *others}


def test_interrupted_downloads_of_all_parts_go(config: Path) -> None:
    for part in (1, 2):
        (config.parent / f".m-{part:05d}-of-00002.gguf.0123456789ab.part").write_bytes(b"half")
    added(config, "  a: {runtime: llama.cpp, path: m-00001-of-00002.gguf}")
    done = ctxgate(config, "remove", "a", "--weights")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in config.parent.iterdir()] == ["config.yaml"]

"""Mistakes in config.yaml that its schema accepts: commands report them, without a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.commands import answering, config, ctxgate, serving
from tests.cli.named import gateway
from tests.ports import free_port


@pytest.mark.parametrize(
    ("model", "text", "cure"),
    [
        ("runtime: llama.cpp, path: text", "text is not a GGUF file", "llama.cpp reads GGUF files"),
        ("runtime: llama.cpp, path: folder", "folder is a folder", "llama.cpp reads GGUF files"),
        ("runtime: mlx, path: text", "text is a file", "MLX needs the model's folder"),
        ("runtime: llama.cpp, path: text, mmproj_path: gone", "no projector at", "correct mmproj_path:"),
        ('runtime: "nowhere.at_all:Class", base_url: "http://127.0.0.1:9"', "its backend can't be loaded", "nowhere"),
    ],
    ids=["no GGUF", "a folder", "a file for MLX", "no projector", "no such class"],
)
def test_the_doctor_checks_files_and_classes(model: str, text: str, cure: str, tmp_path: Path) -> None:
    file = config(tmp_path, f"active_model: m\nmodels: {{m: {{{model}}}}}\nserver: {{port: {free_port()}}}\n")
    file.with_name("text").write_text("no weights")
    file.with_name("folder").mkdir()
    if "mlx" in model:
        pytest.importorskip("mlx_lm")
    done = ctxgate("doctor", cwd=tmp_path)
    (found,) = [line for line in done.stdout.split("\nwrong  ")[1:] if line.startswith("model m")]
    assert text in found
    assert cure in found.splitlines()[1]
    assert (done.returncode, done.stderr) == (69, "")


def test_models_lists_a_folder_with_unreadable_files(tmp_path: Path) -> None:
    """A wrong path may name a folder with dead links and overlong paths."""
    file = config(tmp_path, "active_model: m\nmodels: {m: {runtime: mlx, path: deep}}\nserver: {port: 1}\n")
    folder = file.with_name("deep")
    folder.mkdir()
    (folder / "gone").symlink_to("nowhere")
    (folder / "weights").write_bytes(b"x" * 2_100_000)
    below = os.open(folder, os.O_DIRECTORY)
    for _ in range(20):  # longer than any path may be
        os.mkdir("d" * 250, dir_fd=below)
        inner = os.open("d" * 250, os.O_DIRECTORY, dir_fd=below)
        os.close(below)
        below = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=below))
    os.close(below)
    done = ctxgate("models", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "*  m      mlx      native_json  -        2.1 MB     no" in done.stdout


def test_an_unknown_backend_is_an_error_that_no_retry_cures(tmp_path: Path) -> None:
    model = '{runtime: "nowhere.at_all:Class", base_url: "http://127.0.0.1:9"}'
    config(tmp_path, f"active_model: m\nmodels: {{m: {model}}}\n")
    with serving(tmp_path, "--uds", "s"), answering(uds=tmp_path / "s") as client:
        answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (424, "engine_missing")
    assert answer.headers["x-should-retry"] == "false"
    assert "runtime 'nowhere.at_all:Class' of config.yaml can't be loaded: No module" in answer.text


@pytest.mark.parametrize("words", ["status --once", "load", "plan", "batch ls", "replay", "models", "room new"])
@pytest.mark.parametrize(("name", "says"), [("missing.yaml", "No such file or directory"), ("folder", "can't be read")])
def test_a_configuration_that_isnt_there_is_no_default(words: str, name: str, says: str, tmp_path: Path) -> None:
    """Else the gateway at the default address, which may be another's, would be asked."""
    (tmp_path / "folder").mkdir()
    done = ctxgate(*words.split(), "--config", name, cwd=tmp_path)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def test_a_configuration_with_mistakes_still_says_where_its_gateway_is(tmp_path: Path) -> None:
    port = free_port()
    config(tmp_path, f"active_model: nobody\nmodels: {{e: {{runtime: echo}}}}\nserver: {{port: {port}}}\n")
    assert f"no gateway answers at http://127.0.0.1:{port}" in ctxgate("plan", cwd=tmp_path).stderr


@pytest.mark.parametrize("mistake", [b"oops: [", b"\xff", b"\n- a list", b"a: &a [*a]", b"#" * 1_100_000])
def test_a_file_that_is_no_configuration_hides_no_running_gateway(mistake: bytes, tmp_path: Path) -> None:
    with gateway(tmp_path) as url:
        file = tmp_path / "_models" / "config.yaml"
        with file.open("ab") as stream:
            stream.write(mistake)
        for words in (("status", "--once"), ("status", "--once", "--url", url.removesuffix("/v1"))):
            done = ctxgate(*words, cwd=tmp_path)
            assert (done.returncode, "mine" in done.stdout) == (0, True), done.stderr


def test_an_address_needs_no_configuration(tmp_path: Path) -> None:
    with gateway(tmp_path) as url:
        for name in ("missing.yaml", "_models"):
            done = ctxgate("status", "--once", "--config", name, "--url", url.removesuffix("/v1"), cwd=tmp_path)
            assert (done.returncode, "mine" in done.stdout) == (0, True), done.stderr

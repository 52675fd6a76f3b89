"""The hub's own client against a loopback hub, through the command, since the client reads its settings at import."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.features.models.pull.download import ATTEMPTS
from tests.conftest import ROOT
from tests.models.pull.sources import WEIGHTS, Source, serving
from tests.patience import PATIENCE
from tests.support.hub import COMMIT, REPO, hub

PARTS = tuple(f"tiny-{part:05d}-of-00003.gguf" for part in (1, 2, 3))
VOICE = ("tiny.onnx", "tiny.onnx.json")


def environment(source: Source, folder: Path) -> dict[str, str]:
    """Of a command that takes `source` for the hub."""
    environ = {
        **os.environ,
        "HF_ENDPOINT": source.url,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "5",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    environ.pop("HF_HUB_OFFLINE", None)
    return environ


def run(
    source: Source,
    folder: Path,
    pull: str,
    *options: str,
    path: str = "tiny.gguf",
    before: tuple[str, ...] = (),
    prepare: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """options: of the command. before: words before it. prepare: runs in its process before it."""
    config = folder / "config.yaml"
    config.write_text(f"active_model: m\nmodels: {{m: {{runtime: llama.cpp, path: {path}, pull: {pull}}}}}\n")
    command = [*before, sys.executable, "-m", "gateway", "pull", "--config", str(config), *options]
    return subprocess.run(
        command,
        env=environment(source, folder),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        preexec_fn=prepare,
    )


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("config.yaml", "home"))


def test_a_file(tmp_path: Path) -> None:
    with serving(hub()) as source:
        done = run(source, tmp_path, f"{{hub: {REPO}, file: tiny.gguf}}")
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "tiny.gguf")), done.stderr
    assert (tmp_path / "tiny.gguf").read_bytes() == WEIGHTS
    assert left(tmp_path) == ["tiny.gguf"]


@pytest.mark.parametrize("who", ["hub", "config"])
def test_another_hash_is_refused(who: str, tmp_path: Path) -> None:
    extra = f", sha256: {'a' * 64}" if who == "config" else ""
    with serving(hub(promised="b" * 64 if who == "hub" else None)) as source:
        done = run(source, tmp_path, f"{{hub: {REPO}, file: tiny.gguf{extra}}}")
    assert done.returncode == 1
    assert "isn't what was promised" in done.stderr
    assert left(tmp_path) == []


def test_a_folder(tmp_path: Path) -> None:
    with serving(hub()) as source:
        done = run(source, tmp_path, f"{{hub: {REPO}}}", path="tiny-folder")
    assert done.returncode == 0, done.stderr
    assert left(tmp_path) == ["tiny-folder"]
    assert sorted(path.name for path in (tmp_path / "tiny-folder").iterdir()) == ["config.json", "tiny.gguf"]
    assert (tmp_path / "tiny-folder" / "tiny.gguf").read_bytes() == WEIGHTS


@pytest.mark.parametrize("path", ["tiny.gguf", "tiny-folder"])
def test_a_torn_download_goes_on_where_it_stopped(path: str, tmp_path: Path) -> None:
    source = hub()
    source.cuts = [1_000_000] + [0] * ATTEMPTS
    pull = f"{{hub: {REPO}, file: tiny.gguf}}" if path.endswith(".gguf") else f"{{hub: {REPO}}}"
    with serving(source):
        torn = run(source, tmp_path, pull, path=path)
        assert torn.returncode == 69
        assert "pull again: it continues where this one stopped" in torn.stderr
        assert not (tmp_path / path).exists()
        source.asked.clear()
        done = run(source, tmp_path, pull, path=path)
    assert done.returncode == 0, done.stderr
    assert [asked for asked in source.asked if asked.startswith("GET") and asked.partition(" ")[2].count(".gguf")] == [
        f"GET /{REPO}/resolve/{COMMIT}/tiny.gguf bytes=1000000-"
    ]
    assert left(tmp_path) == [path]
    found = tmp_path / path if path.endswith(".gguf") else tmp_path / path / "tiny.gguf"
    assert found.read_bytes() == WEIGHTS


def at_most(count: int) -> Callable[[], None]:
    """Lets a process write no file longer than this: what it writes beyond fails as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (count, count))


@pytest.mark.parametrize("path", ["tiny.gguf", "tiny-folder"])
def test_a_disk_that_gets_full_is_said_and_nothing_is_left(path: str, tmp_path: Path) -> None:
    pull = f"{{hub: {REPO}, file: tiny.gguf}}" if path.endswith(".gguf") else f"{{hub: {REPO}}}"
    with serving(hub()) as source:
        done = run(source, tmp_path, pull, path=path, prepare=at_most(1_000_000))
    assert done.returncode == 69, done.stderr
    assert "no more space" in done.stderr
    assert "Traceback" not in done.stderr
    assert left(tmp_path) == []


@pytest.mark.parametrize("path", ["tiny.gguf", "tiny-folder"])
def test_a_disk_that_is_too_small_is_said_before_the_download(path: str, tmp_path: Path) -> None:
    """A real file system of 1 MB."""
    small = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    mount = f"mount -t tmpfs -o size=1m none {tmp_path} && "
    if shutil.which("unshare") is None or subprocess.run([*small, f"{mount}true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a file system of his own")
    pull = f"{{hub: {REPO}, file: tiny.gguf}}" if path.endswith(".gguf") else f"{{hub: {REPO}}}"
    text = f"active_model: m\nmodels: {{m: {{runtime: llama.cpp, path: {path}, pull: {pull}}}}}\n"
    script = f"cat > {tmp_path}/config.yaml; {sys.executable} -m gateway pull --config {tmp_path}/config.yaml"
    with serving(hub()) as source:
        done = subprocess.run(
            [*small, f"{mount}{{ {script}; code=$?; ls -A {tmp_path}; exit $code; }}"],
            env={**environment(source, tmp_path), "HF_HOME": str(tmp_path.parent / "hf")},
            cwd=ROOT,
            input=text,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 69, done.stderr
    assert "but needs 3.07 MB" in done.stderr or "but needs 3.1 MB" in done.stderr
    assert done.stdout.split() == ["config.yaml"]
    assert not [asked for asked in source.asked if "/resolve/" in asked and asked.endswith(".gguf")]


def test_a_model_in_several_files(tmp_path: Path) -> None:
    with serving(hub(names=PARTS)) as source:
        done = run(source, tmp_path, f"{{hub: {REPO}, file: {PARTS[0]}}}", path=PARTS[0])
    assert done.returncode == 0, done.stderr
    assert left(tmp_path) == sorted(PARTS)
    assert all((tmp_path / name).read_bytes() == WEIGHTS for name in PARTS)


@pytest.mark.parametrize("names", [PARTS, VOICE], ids=["parts", "voice"])
def test_several_files_appear_together_and_are_continued_together(names: tuple[str, ...], tmp_path: Path) -> None:
    pull = f"{{hub: {REPO}, file: {names[0]}}}"
    fails = f"/{REPO}/resolve/{COMMIT}/{names[1]}"
    source = hub(names=names)
    source.statuses = {fails: 503}
    with serving(source):
        assert run(source, tmp_path, pull, path=names[0]).returncode == 69
        assert not [name for name in names if (tmp_path / name).exists()]
        source.statuses = {}
        done = run(source, tmp_path, pull, path=names[0])
    assert done.returncode == 0, done.stderr
    assert left(tmp_path) == sorted(names)
    assert f"GET /{REPO}/resolve/{COMMIT}/{names[0]} bytes={len(WEIGHTS)}-" in source.asked


def test_of_several_files_those_that_are_missing_or_damaged_are_fetched(tmp_path: Path) -> None:
    pull = f"{{hub: {REPO}, file: {PARTS[0]}}}"
    (tmp_path / PARTS[0]).write_bytes(WEIGHTS)
    (tmp_path / PARTS[1]).write_bytes(WEIGHTS[:-1] + b"x")
    with serving(hub(names=PARTS)) as source:
        done = run(source, tmp_path, pull, path=PARTS[0])
        assert done.returncode == 0, done.stderr
        assert [(tmp_path / name).read_bytes() == WEIGHTS for name in PARTS] == [True, True, True]
        assert not [asked for asked in source.asked if asked.startswith("GET") and PARTS[0] in asked]


def test_force_replaces_every_file(tmp_path: Path) -> None:
    for name in PARTS:
        (tmp_path / name).write_bytes(b"old")
    with serving(hub(names=PARTS)) as source:
        done = run(source, tmp_path, f"{{hub: {REPO}, file: {PARTS[0]}}}", "--force", path=PARTS[0])
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / name).read_bytes() == WEIGHTS for name in PARTS] == [True, True, True]


def test_a_licence_that_must_be_accepted(tmp_path: Path) -> None:
    source = hub()
    refused = f"/api/models/{REPO}/auth-check"
    source.statuses = {f"/{REPO}/resolve/{COMMIT}/tiny.gguf": 401, refused: 403}
    source.codes = {refused: "GatedRepo"}
    with serving(source):
        done = run(source, tmp_path, f"{{hub: {REPO}, file: tiny.gguf}}")
    assert done.returncode == 13
    assert "requires you to accept its licence" in done.stderr


def test_a_name_that_leads_out_of_the_folder(tmp_path: Path) -> None:
    with serving(hub(names=("../../evil.gguf",))) as source:
        done = run(source, tmp_path, f"{{hub: {REPO}}}", path="tiny-folder")
    assert done.returncode == 1
    assert "the hub lists a file named" in done.stderr
    assert left(tmp_path) == []


def test_no_such_file(tmp_path: Path) -> None:
    with serving(hub()) as source:
        done = run(source, tmp_path, f"{{hub: {REPO}, file: other.gguf}}")
    assert (done.returncode, done.stderr.strip()) == (1, f"ctxgate: {REPO} has no other.gguf")


def test_offline(tmp_path: Path) -> None:
    with serving(Source()) as gone:
        pass
    done = run(gone, tmp_path, f"{{hub: {REPO}, file: tiny.gguf, sha256: {'a' * 64}}}")
    assert done.returncode == 69, done.stderr
    assert "the hub can't be reached" in done.stderr
    assert "Traceback" not in done.stderr

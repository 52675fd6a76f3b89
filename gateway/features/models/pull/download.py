"""Downloads one file over HTTP, and resumes an interrupted download."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from gateway.errors import Backoff, GatewayError, ProviderInvalidModel, ProviderInvalidResponse, ProviderUnavailable
from gateway.features.models.pull.files import check_space, cleared_if_full, digest, wrong_hash
from gateway.features.models.pull.progress import Progress
from gateway.features.models.pull.stopping import HOOKS

TIMEOUT = httpx.Timeout(30, connect=10)
ATTEMPTS = 3
"""Consecutive tries without a byte before giving up."""
MAX_ATTEMPTS = 50
RETRY = Backoff(0.2, 5.0)
"""Delay between consecutive tries without a byte."""


def client(environ: Mapping[str, str]) -> httpx.Client:
    """Takes proxies and certificates from the environment, including pip's variable for certificates."""
    import ssl

    bundle = environ.get("SSL_CERT_FILE") or environ.get("PIP_CERT") or environ.get("REQUESTS_CA_BUNDLE")
    verify = ssl.create_default_context(cafile=bundle) if bundle and Path(bundle).is_file() else True
    return httpx.Client(timeout=TIMEOUT, follow_redirects=True, verify=verify, event_hooks=HOOKS)


def download(http: httpx.Client, url: str, part: Path, sha256: str | None, label: str, progress: Progress) -> None:
    """Downloads `url` into `part`, continuing after the bytes that `part` already has.

    Resumes a cut connection until ATTEMPTS tries bring nothing; then leaves `part` for the next pull.
    Raises ProviderUnavailable (a full disk deletes `part`), ProviderInvalidModel (404), ProviderInvalidResponse (wrong
    hash; deletes `part`).
    """
    fruitless = 0
    for _ in range(MAX_ATTEMPTS):
        before = part.stat().st_size if part.exists() else 0
        try:
            with cleared_if_full(part):
                _continue(http, url, part, before, label, progress)
            break
        except httpx.HTTPError as error:
            gained = (part.stat().st_size if part.exists() else 0) > before
            fruitless = 0 if gained else fruitless + 1
            if fruitless == ATTEMPTS:
                raise unreachable(url, error) from error
            time.sleep(RETRY.delay(fruitless))
    else:
        raise ProviderUnavailable(f"{_host(url)} cut the connection {MAX_ATTEMPTS} times; pull again to continue")
    if sha256 is not None and (found := digest(part)) != sha256:
        part.unlink()
        raise wrong_hash(label, sha256, found)


def _continue(http: httpx.Client, url: str, part: Path, start: int, label: str, progress: Progress) -> None:
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={start}-"} if start else {})
    with http.stream("GET", url, headers=headers) as response:
        if response.status_code == 416:
            if (total := _total(response)) != start:  # `part` isn't the beginning of this file
                part.unlink()
                raise httpx.RemoteProtocolError(f"the part has {start} bytes, the file {total}")
            return
        if response.is_error:
            raise refused(url, response.status_code)
        resumed = response.status_code == 206
        if resumed and not response.headers.get("content-range", "").startswith(f"bytes {start}-"):
            part.unlink()
            raise httpx.RemoteProtocolError("the server sent another range than requested")
        done = start if resumed else 0
        length = response.headers.get("content-length")
        total = done + int(length) if length is not None and length.isdigit() else None
        check_space((total or done) - done, part.parent)
        with part.open("ab" if resumed else "wb") as stream:
            # No chunk size: httpx would buffer that much, and lose it when the connection breaks.
            for chunk in response.iter_raw():
                stream.write(chunk)
                done += len(chunk)
                progress(label, done, total)
        if total is not None and done != total:
            raise httpx.RemoteProtocolError(f"received {done} of {total} bytes")


def _total(response: httpx.Response) -> int | None:
    match = re.fullmatch(r"bytes \*/(\d{1,18})", response.headers.get("content-range", ""))
    return int(match[1]) if match else None


def refused(url: str, status: int) -> GatewayError:
    place = f"{_host(url)} answers {status}"
    if status in (404, 410):
        return ProviderInvalidModel(f"{place}: there is no {urlsplit(url).path}")
    if status in (408, 429) or status >= 500:
        return ProviderUnavailable(f"{place}; try again later")
    return ProviderInvalidResponse(f"{place} for {urlsplit(url).path}")


def unreachable(url: str, error: Exception) -> ProviderUnavailable:
    return ProviderUnavailable(
        f"{_host(url)} can't be reached ({str(error) or type(error).__name__}); check the network, then pull again:"
        " it continues where this one stopped",
        code="offline",
    )


def _host(url: str) -> str:
    """Host and port, without the user and password that an index URL may contain."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)

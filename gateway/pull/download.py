"""One file over HTTP, resumed where it was cut off."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from gateway.errors import Backoff, GatewayError, ProviderInvalidModel, ProviderInvalidResponse, ProviderUnavailable
from gateway.pull.files import digest, room_for, wrong
from gateway.pull.progress import Progress

TIMEOUT = httpx.Timeout(30, connect=10)
ATTEMPTS = 3
"""Tries in a row that bring not one byte, after which we give up."""
MAX_ATTEMPTS = 50
RETRY = Backoff(0.2, 5.0)
"""Between tries in a row that bring not one byte."""


def client(environ: Mapping[str, str]) -> httpx.Client:
    """Proxies and certificates as the environment says, pip's variable for certificates included."""
    import ssl

    bundle = environ.get("SSL_CERT_FILE") or environ.get("PIP_CERT") or environ.get("REQUESTS_CA_BUNDLE")
    verify = ssl.create_default_context(cafile=bundle) if bundle and Path(bundle).is_file() else True
    return httpx.Client(timeout=TIMEOUT, follow_redirects=True, verify=verify)


def download(http: httpx.Client, url: str, part: Path, sha256: str | None, label: str, progress: Progress) -> None:
    """Fills `part` with the file at `url`; what is in `part` already is its beginning.

    A connection that is cut is taken up again, ATTEMPTS times without progress; then `part` stays for the next pull.
    Raises ProviderUnavailable, ProviderInvalidModel (404), ProviderInvalidResponse (another hash: `part` is deleted).
    """
    fruitless = 0
    for _ in range(MAX_ATTEMPTS):
        before = part.stat().st_size if part.exists() else 0
        try:
            _continue(http, url, part, before, label, progress)
            break
        except httpx.HTTPError as error:
            gained = (part.stat().st_size if part.exists() else 0) > before
            fruitless = 0 if gained else fruitless + 1
            if fruitless == ATTEMPTS:
                raise unreachable(url, error) from error
            time.sleep(RETRY.delay(fruitless))
    else:
        raise ProviderUnavailable(f"{_host(url)} cut the connection {MAX_ATTEMPTS} times; pull again to go on")
    if sha256 is not None and (found := digest(part)) != sha256:
        part.unlink()
        raise wrong(label, sha256, found)


def _continue(http: httpx.Client, url: str, part: Path, start: int, label: str, progress: Progress) -> None:
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={start}-"} if start else {})
    with http.stream("GET", url, headers=headers) as response:
        if response.status_code == 416:
            if (total := _total(response)) != start:  # it isn't the beginning of this file
                part.unlink()
                raise httpx.RemoteProtocolError(f"{start} of {total} bytes were asked for")
            return
        if response.is_error:
            raise refused(url, response.status_code)
        resumed = response.status_code == 206
        if resumed and not response.headers.get("content-range", "").startswith(f"bytes {start}-"):
            part.unlink()
            raise httpx.RemoteProtocolError("the server sent another range than was asked for")
        done = start if resumed else 0
        length = response.headers.get("content-length")
        total = done + int(length) if length is not None and length.isdigit() else None
        room_for((total or done) - done, part.parent)
        with part.open("ab" if resumed else "wb") as stream:
            # Without a chunk size: httpx would collect that much first, and lose it when the connection is cut.
            for chunk in response.iter_raw():
                stream.write(chunk)
                done += len(chunk)
                progress(label, done, total)
        if total is not None and done != total:
            raise httpx.RemoteProtocolError(f"{done} of {total} bytes came")


def _total(response: httpx.Response) -> int | None:
    match = re.fullmatch(r"bytes \*/(\d+)", response.headers.get("content-range", ""))
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
        " what has come so far is kept",
        code="offline",
    )


def _host(url: str) -> str:
    """Without the user and password that an index's address may carry."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)

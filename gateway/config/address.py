"""The address of an engine: `base_url` and `port` in one form."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from gateway.config.problems import BadValue


class Place(Struct, frozen=True):
    base_url: str | None = None
    uds: Path | None = None
    port: int | None = None
    """Port of a plain HTTP server on this machine, the only place where the gateway can start an engine."""


def place(base_url: str | None, port: int | None) -> Place:
    """Raises BadValue if `base_url` is invalid or contradicts `port`."""
    if base_url is None:
        return Place() if port is None else Place(f"http://127.0.0.1:{port}", None, port)
    if base_url.startswith("unix:"):
        path = "/" + base_url.removeprefix("unix:").lstrip("/")
        if path == "/" or not base_url.startswith("unix:/"):
            raise BadValue("names no socket", "write unix:/path/to/socket")
        if port is not None:
            raise BadValue("is a Unix socket, but there is a port too", "keep one of base_url and port")
        return Place(uds=Path(path))
    try:
        url = urlsplit(base_url)
        known = url.port
    except ValueError:
        raise BadValue("isn't a URL", _FORM) from None
    if url.scheme not in ("http", "https") or not url.hostname:
        raise BadValue("isn't a URL", _FORM)
    if not _is_host(url.hostname):
        raise BadValue("has an invalid host name", _FORM)
    if not _PLAIN.fullmatch(url.path):
        raise BadValue("has spaces or non-ASCII letters in its path", "percent-encode them, as %20")
    if url.username is not None or url.password is not None:
        raise BadValue("contains a password", "put it in api_key, as ${VARIABLE} or keychain:NAME")
    if url.query or url.fragment:
        raise BadValue("has a query or a fragment", _FORM)
    here = is_loopback(url.hostname) and url.scheme == "http"
    found = known or (443 if url.scheme == "https" else 80)
    if port is not None and (not here or port != found):
        raise BadValue(f"doesn't agree with port {port}", "keep one of base_url and port")
    return Place(base_url.rstrip("/").removesuffix("/v1").rstrip("/"), None, found if here else None)


_FORM = "write http://host:port, https://host/prefix or unix:/path/to/socket"


_PLAIN = re.compile(r"[!-~]*")


def _is_host(host: str) -> bool:
    """Whether DNS can resolve it: ASCII, in labels of up to 63 characters. IPv6 addresses have colons instead."""
    labels = host.removesuffix(".").split(".")
    return bool(_PLAIN.fullmatch(host)) and all(0 < len(label) <= 63 for label in labels)


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

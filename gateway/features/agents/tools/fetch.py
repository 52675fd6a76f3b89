"""HTTP for an untrusted model.

Every request and every redirect goes through `Guarded`: it resolves the name once, checks the addresses, and connects
to one that it has checked. It ignores proxies of the environment and .netrc.
"""

from __future__ import annotations

import asyncio
import codecs
import re
import socket
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import httpx

from gateway import __version__
from gateway.features.agents.settings import RoomTools
from gateway.features.agents.tools.addresses import is_allowed, is_own, is_public
from gateway.features.agents.tools.base import ToolError

if TYPE_CHECKING:
    import ssl

REDIRECTS = 5
ADDRESSES = 4
"""Addresses of a host to try."""
AT_ONCE = 16
"""Fetches, and lookups of names, that one share may have at a time: a tenant's hanging ones delay no other tenant."""
LONGEST_URL, LONGEST_HEADER, MAX_HEADERS = 8192, 8192, 50
CONNECT_SECONDS = 5.0
MAX_PIECES, AT_ONCE_READ = 20_000, 64
"""How many pieces a body may come in, and how many to read before others get the event loop: a server may send each
byte in a chunk of its own, which costs as much as a kilobyte."""
DECODED = 16 * 1024
"""Bytes to decode before other threads may run: of some charsets, each wrong byte takes a microsecond."""

_LOWEST_PORT = 1024
_WEB_PORTS = (80, 443)
_LOOKS_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)\.?$", re.IGNORECASE)
"""The last label of a host that is an IPv4 address in any form (WHATWG URL, "ends in a number")."""

GZIP = b"\x1f\x8b"
"""The first bytes of each member."""

OURS = frozenset(
    {
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer"),
        *("expect", "accept-encoding", "proxy-authorization", "proxy-connection", "proxy-authenticate"),
    }
)
"""Request headers of HTTP itself: the model may not set them."""
CROSS_ORIGIN = frozenset({"accept", "accept-language", "user-agent", "content-type", "content-length", "host"})
"""Request headers that are sent on to another origin. Others may be secrets for the first one."""
SECRET = frozenset({"set-cookie", "set-cookie2", "authorization", "proxy-authorization", "www-authenticate"})
"""Response headers that are left out of results."""


class Resolver(Protocol):
    async def __call__(self, host: str, port: int) -> list[str]:
        """The host's addresses, the preferred first. Raises OSError."""
        ...


Result = TypeVar("Result")

Addresses = list[tuple[Any, ...]]
"""What `socket.getaddrinfo` returns."""


class SystemResolver:
    """Asks the system, AT_ONCE names at a time.

    A lookup can't be cancelled, so each has a thread of its own, which doesn't delay the end of the process.
    """

    def __init__(self, lookup: Callable[[str, int], Addresses] | None = None) -> None:
        self._lookup = lookup or partial(socket.getaddrinfo, type=socket.SOCK_STREAM)
        self._places = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, host: str, port: int) -> list[str]:
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Addresses] = loop.create_future()

        def done(found: Addresses | Exception) -> None:
            self._places.release()
            if answer.done():
                return  # nobody waits any more
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def resolve() -> None:
            found: Addresses | Exception
            try:
                found = self._lookup(host, port)
            except (OSError, UnicodeError) as error:
                found = error
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done, found)

        threading.Thread(target=resolve, name=f"resolver {host}", daemon=True).start()
        return list(dict.fromkeys(str(address[0]) for *_, address in await answer))


@cache
def _authorities() -> ssl.SSLContext:
    """The web's certificate authorities. Loading them is slow."""
    return httpx.create_ssl_context(trust_env=False)


def web_transport(context: ssl.SSLContext) -> httpx.AsyncBaseTransport:
    # No keep-alive: connections would be reused by address, whatever the name.
    limits = httpx.Limits(max_connections=4, max_keepalive_connections=0)
    return httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits)


@dataclass(frozen=True, slots=True)
class Fetched:
    url: str
    """The last one, after redirects."""
    status: int
    headers: dict[str, str]
    """Names in lower case, without those in SECRET."""
    body: bytes
    truncated: bool
    """Whether the body was cut at the configured size."""

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()[:200]

    def text(self) -> str | None:
        """The body as text in its declared charset, else UTF-8. None if it isn't text. It may take seconds."""
        match = re.search(r"charset\s*=\s*[\"']?([\w.:-]+)", self.headers.get("content-type", ""), re.IGNORECASE)
        charset = match[1] if match else "utf-8"
        if charset.lower() not in CHARSETS:
            charset = "utf-8"
        try:
            return self.body.decode(charset)
        except UnicodeDecodeError:
            textual = self.content_type.startswith("text/") or match is not None or self.truncated
            return _replaced(self.body, charset) if textual and b"\0" not in self.body[:1024] else None


def _replaced(data: bytes, charset: str) -> str:
    """Wrong bytes replaced; in pieces, since a decoder keeps all other threads waiting."""
    name = codecs.lookup(charset).name
    if name in _MARKS and not data.startswith(_MARKS[name]):
        name += "-le"  # as `bytes.decode` takes it; an incremental decoder wants a mark
    decoder = codecs.getincrementaldecoder(name)("replace")
    found = [decoder.decode(data[at : at + DECODED]) for at in range(0, len(data), DECODED)]
    return "".join([*found, decoder.decode(b"", True)])


_MARKS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
CHARSETS = frozenset(
    {
        *("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1", "iso-8859-2", "iso-8859-15"),
        *("windows-1250", "windows-1251", "windows-1252", "koi8-r", "utf-16", "utf-16le", "utf-16be"),
        *("shift_jis", "euc-jp", "euc-kr", "gb2312", "gbk", "gb18030", "big5"),
    }
)
"""Charsets of the web. Python has other codecs that aren't charsets."""


class _Apart:
    """A thread with an event loop of its own, since thousands of headers, cookies or early hints take long to read.

    It begins with the first work, and ends with the process.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="fetches", daemon=True).start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


class Fetcher:
    """Fetches what the configuration allows. One per process; each share has a thread of its own.

    resolver: by default the system's. verify: certificate authorities, by default the web's. transport: creates the
    transport that connects to an address.
    """

    def __init__(
        self,
        tools: RoomTools,
        resolver: Resolver | None = None,
        verify: ssl.SSLContext | None = None,
        transport: Callable[[ssl.SSLContext], httpx.AsyncBaseTransport] = web_transport,
    ) -> None:
        self._tools = tools
        self._resolvers: dict[str, Resolver] = defaultdict(SystemResolver if resolver is None else lambda: resolver)
        self._context = verify
        self._transport = transport
        self._places: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        self._threads: dict[str, _Apart] = defaultdict(_Apart)

    async def fetch(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        timeout: float | None = None,
        share: str = "",
    ) -> Fetched:
        """Fetches a URL, following up to REDIRECTS redirects; returns the answer, whatever its status.

        timeout: seconds in all, at most the configuration's. share: whose places it takes.
        Raises ToolError: url_refused, address_refused, fetch_timeout, fetch_failed, too_many_redirects.
        """
        return await self._threads[share].run(self._fetch(method, url, headers, body, timeout, share))

    async def _fetch(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float | None, share: str
    ) -> Fetched:
        maximum = self._tools.fetch_timeout_seconds
        try:
            async with asyncio.timeout(min(timeout or maximum, maximum)), self._places[share]:
                return await self._follow(method, url, _checked(headers), body, self._resolvers[share])
        except TimeoutError:
            raise ToolError("fetch_timeout", "the answer took too long") from None
        except httpx.InvalidURL:
            raise ToolError("url_refused", "invalid URL") from None
        except httpx.HTTPError as error:
            # httpx's messages may quote what the server sent.
            raise ToolError("fetch_failed", f"the request failed: {type(error).__name__}") from None

    async def _follow(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None, resolver: Resolver
    ) -> Fetched:
        if self._context is None:
            self._context = await asyncio.to_thread(_authorities)
        maximum = self._tools.fetch_timeout_seconds
        transport = Guarded(self._tools, resolver, self._transport(self._context))
        async with httpx.AsyncClient(
            transport=transport, trust_env=False, timeout=maximum, headers=_DEFAULTS
        ) as client:
            request = client.build_request(method, url, headers=headers, content=body)
            for _ in range(REDIRECTS + 1):
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    following = response.next_request
                    if following is None:
                        return await self._read(response, request)
                finally:
                    await response.aclose()
                if _origin(following.url) != _origin(request.url):
                    for name in set(following.headers) - CROSS_ORIGIN:
                        del following.headers[name]
                    following.headers["accept-encoding"] = _DEFAULTS["accept-encoding"]
                request = following
        raise ToolError("too_many_redirects", f"there were more than {REDIRECTS} redirects")

    async def _read(self, response: httpx.Response, request: httpx.Request) -> Fetched:
        """Reads the body up to the limit, which applies to its bytes before and after unpacking."""
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "x-gzip", ""):
            raise ToolError("fetch_failed", "the answer has a content encoding that was not requested")
        unpack = Gunzip() if "gzip" in encoding else None
        maximum = self._tools.fetch_max_bytes
        body = bytearray()
        raw = pieces = 0
        async for piece in response.aiter_raw():
            raw, pieces = raw + len(piece), pieces + 1
            if pieces % AT_ONCE_READ == 0:
                await asyncio.sleep(0)
            try:
                body += unpack(piece, maximum + 1 - len(body)) if unpack else piece
            except zlib.error:
                raise ToolError("fetch_failed", "the answer's gzip is broken") from None
            if len(body) > maximum or raw > maximum or pieces > MAX_PIECES:
                break
        truncated = max(len(body), raw) > maximum or pieces > MAX_PIECES or (unpack is not None and not unpack.complete)
        headers: dict[str, list[str]] = {}
        for name, value in response.headers.multi_items():
            if name not in SECRET:
                headers.setdefault(name, []).append(value)
        joined = {name: ", ".join(values) for name, values in headers.items()}
        url = str(request.url.copy_with(fragment=None))
        return Fetched(url, response.status_code, joined, bytes(body[:maximum]), truncated)


class Gunzip:
    """Unpacks gzip in pieces: one member or several, one behind another (RFC 1952)."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(31)
        self._any = False

    def __call__(self, piece: bytes, maximum: int) -> bytes:
        """The piece unpacked, at most `maximum` bytes. Raises zlib.error; ignores what follows that is no member."""
        found = bytearray()
        while piece and len(found) < maximum:
            if self._member.eof:
                if piece[:1] != GZIP[:1]:
                    break
                self._member = zlib.decompressobj(31)
            found += self._member.decompress(piece, maximum - len(found))
            self._any = True
            piece = self._member.unused_data
        return bytes(found)

    @property
    def complete(self) -> bool:
        """Whether the last member has come to its end; True before the first byte."""
        return self._member.eof or not self._any


class Guarded(httpx.AsyncBaseTransport):
    """Lets `inner` connect only to checked addresses, under the requested name."""

    def __init__(self, tools: RoomTools, resolver: Resolver, inner: httpx.AsyncBaseTransport) -> None:
        self._tools = tools
        self._resolver = resolver
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        host, port = check_url(url)
        addresses = await self._addresses(host, port)
        extensions = {**request.extensions, "timeout": {"connect": CONNECT_SECONDS}}
        if not _is_address(host):
            extensions["sni_hostname"] = host
        failure: httpx.HTTPError | None = None
        for address in addresses[:ADDRESSES]:
            pinned = httpx.Request(
                request.method,
                url.copy_with(host=address),
                headers=request.headers,  # Host stays the requested name
                stream=request.stream,
                extensions=extensions,
            )
            try:
                return await self._inner.handle_async_request(pinned)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        assert failure is not None
        raise failure

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _addresses(self, host: str, port: int) -> list[str]:
        allowed = is_allowed(host, port, self._tools.allow_hosts)
        if not allowed:
            if not self._tools.public_hosts:
                raise ToolError("address_refused", "the host isn't on the allow list")
            if port < _LOWEST_PORT and port not in _WEB_PORTS:
                raise ToolError("address_refused", f"port {port} is not a web port")
        if _is_address(host):
            addresses = [host]
        else:
            try:
                addresses = await self._resolver(host, port)
            except (OSError, UnicodeError):
                addresses = []
        if not addresses:
            raise ToolError("fetch_failed", "the host's name has no address")
        # A private address among public ones is an attack or a mistake.
        if not allowed and not all(is_public(address) and not is_own(address) for address in addresses):
            raise ToolError("address_refused", "the host isn't on the public internet")
        return addresses


def check_url(url: httpx.URL) -> tuple[str, int]:
    """The host and port of a URL. Raises ToolError, code `url_refused`, for a URL that may not be fetched."""
    if len(str(url)) > LONGEST_URL:
        raise ToolError("url_refused", f"the URL has more than {LONGEST_URL} characters")
    host = url.raw_host.decode("ascii").lower().removesuffix(".")
    if url.scheme not in ("http", "https"):
        raise ToolError("url_refused", "only http and https are allowed")
    if url.userinfo:
        raise ToolError("url_refused", "a URL may not contain a user or a password")
    if not host or len(host) > 253 or "%" in host or "\\" in host:
        raise ToolError("url_refused", "the URL has an invalid host")
    if not _is_address(host):
        if _LOOKS_NUMERIC.match(host.rpartition(".")[2]):
            raise ToolError("url_refused", "write an IPv4 address as four decimal numbers")
        if not re.fullmatch(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", host):
            raise ToolError("url_refused", "the URL has an invalid host")
    port = url.port if url.port is not None else 443 if url.scheme == "https" else 80
    if not 0 < port < 65536:
        raise ToolError("url_refused", "the URL has an invalid port")
    return host, port


_DEFAULTS = {
    "user-agent": f"ctxgate/{__version__}",
    "accept": "*/*",
    "accept-encoding": "gzip",  # its unpacking can be bounded
}


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    if len(headers) > MAX_HEADERS:
        raise ToolError("invalid_arguments", f"there are more than {MAX_HEADERS} headers")
    for name, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", name):
            raise ToolError("invalid_arguments", "invalid header name")
        if name.lower() in OURS:
            raise ToolError("invalid_arguments", f"the gateway sets the header {name.lower()} itself")
        if len(value) > LONGEST_HEADER or not re.fullmatch(r"[\t\x20-\x7e]*", value):
            raise ToolError("invalid_arguments", f"the value of {name} is too long or not printable ASCII")
    return dict(headers)


def _is_address(host: str) -> bool:
    return _address(host) is not None


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _origin(url: httpx.URL) -> tuple[Any, ...]:
    return url.scheme, url.host, url.port

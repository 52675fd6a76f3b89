"""Which names a request may use for the gateway, and which web pages may send one.

A browser sends the requests of any page to any server, without asking for JSON; only the answer it keeps to itself. And
a page's own name may lead to another machine a second later (DNS rebinding): then the browser takes the gateway for the
page's own server. So the gateway looks at `Host`, which a page can't choose, and at `Origin` and `Sec-Fetch-Site`,
which only browsers send.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateway.errors import GatewayError, ProviderAuthentication, ProviderInvalidRequest
from gateway.server.asgi import Headers

LOOPBACK = frozenset(("localhost", "host.docker.internal", "host.containers.internal"))
"""Names that always mean this machine. The last two are its names in containers."""
METHODS = b"GET, POST, PUT, PATCH, DELETE, OPTIONS"
EXPOSED = (
    *("x-ctxgate-mended", "x-ctxgate-healed", "x-ctxgate-enforced", "x-ctxgate-fallback"),
    *("x-ctxgate-estimate", "x-ctxgate-spoken-by"),
    *("x-ctxgate-dropped-tools", "x-ctxgate-dropped-items", "x-ctxgate-dropped-options", "x-ctxgate-skipped"),
    *("x-ctxgate-call-probability", "retry-after"),
    *("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    *("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
)
"""Headers of answers that pages may read."""
_ASKED = (b"host", b"origin", b"sec-fetch-site")
AGENT = b"user-agent"
_NOTED = frozenset((*_ASKED, AGENT))
PREFLIGHT_SECONDS = b"600"
"""How long a browser may keep the answer to a preflight request."""
_HOST = re.compile(rb"(\[[0-9a-f:.]+\]|[a-z0-9_-][a-z0-9._-]*)(?::[0-9]{0,5})?")
_OWN_SITE = (b"same-origin", b"none")
"""`none`: a person typed the address."""


class Access:
    """hosts: further names of the gateway, `*.domain` and `*` among them; None: a Unix socket, which no page reaches.

    origins: whose pages may use the gateway; `*`: any.
    """

    def __init__(self, hosts: Sequence[str] | None, origins: Sequence[str]) -> None:
        self._any_host = hosts is None or "*" in hosts
        self._hosts = LOOPBACK | {host for host in hosts or () if not host.startswith("*")}
        self._domains = (".localhost", *(host[1:] for host in hosts or () if host.startswith("*.")))
        self._any_origin = "*" in origins
        self._origins = frozenset(origin.lower().encode() for origin in origins)
        self.agent = b""
        """The User-Agent of the request that was admitted last; b"" if it had none."""
        self._known: bytes | None = None
        """The last `Host` that passed: one comparison costs less than a table lookup."""

    def admit(self, headers: Headers, old: bool = False, page: bool = False) -> Headers:
        """The headers that the answer needs for the page that sent the request; none if no page did.

        old: HTTP/1.0, which needs no `Host`. page: the request only shows a page of the gateway's own to a person, so
        that a link on another page may lead to it. Raises ProviderInvalidRequest (400) unless there is one valid
        `Host`, and ProviderAuthentication (403) for a host or a page that may not use the gateway.
        """
        host: bytes | None = None
        self.agent = b""
        for name, value in headers:
            if name in _NOTED:
                if name == AGENT:
                    self.agent = value
                elif name != b"host" or host is not None:
                    return self._browser(headers, page)
                else:
                    host = value
        if host != self._known and (host is not None or not old):
            self._check_host(host)
        return ()

    def preflight(self, headers: Headers) -> Headers:
        """The answer to a preflight request of a page that may use the gateway."""
        asked = {name: value for name, value in headers if name.startswith(b"access-control-request-")}
        if b"access-control-request-method" not in asked:
            return ()
        answer = [(b"access-control-allow-methods", METHODS), (b"access-control-max-age", PREFLIGHT_SECONDS)]
        if wanted := asked.get(b"access-control-request-headers"):
            answer.append((b"access-control-allow-headers", wanted))
        if asked.get(b"access-control-request-private-network") == b"true":
            answer.append((b"access-control-allow-private-network", b"true"))
        return answer

    def _browser(self, headers: Headers, page: bool) -> Headers:
        self.agent = next((value for name, value in headers if name == AGENT), b"")
        hosts, origins, sites = ([value for name, value in headers if name == one] for one in _ASKED)
        host = hosts[0].lower() if len(hosts) == 1 else None
        self._check_host(host)
        if len(origins) > 1 or len(sites) > 1:
            raise ProviderInvalidRequest("a request may have one Origin and one Sec-Fetch-Site", code="invalid_origin")
        if origins:
            origin = origins[0].lower()
            if self._any_origin or origin in self._origins:
                return self._granted(origins[0])
            if host is not None and origin in (b"http://" + host, b"https://" + host):
                return ()
            raise _refused(f"a web page of {_shown(origins[0])}")
        if sites and sites[0] not in _OWN_SITE and not self._any_origin and not page:
            raise _refused("a web page of another site")
        return ()

    def _granted(self, origin: bytes) -> Headers:
        exposed = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())
        if self._any_origin:
            return ((b"access-control-allow-origin", b"*"), exposed)
        return ((b"access-control-allow-origin", origin), exposed, (b"vary", b"Origin"))

    def _check_host(self, host: bytes | None) -> None:
        """host: the only one; None: there is none, or more."""
        if host is None:
            raise ProviderInvalidRequest("a request needs one Host header", code="invalid_host")
        if not self._any_host:
            found = _HOST.fullmatch(host.lower())
            if found is None:
                raise ProviderInvalidRequest(f"Host: {_shown(host)} is not a host", code="invalid_host")
            name = found[1].decode().rstrip(".")
            if not (name in self._hosts or name.endswith(self._domains) or _is_address(name)):
                message = (
                    f"the gateway isn't called {_shown(host)}: if it is, add the name to server.allowed_hosts of "
                    "config.yaml"
                )
                raise ProviderAuthentication(message, code="host_not_allowed", status=403)
        self._known = host


def _refused(who: str) -> GatewayError:
    message = f"{who} may not use the gateway: add its origin to server.cors_origins of config.yaml"
    return ProviderAuthentication(message, code="origin_not_allowed", status=403)


def _is_address(name: str) -> bool:
    """An IP address can't be rebound by someone else's page."""
    import ipaddress  # the start needn't wait for it

    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _shown(value: bytes) -> str:
    """Text from a stranger, cut and made printable."""
    return ascii(value[:100].decode("latin-1"))

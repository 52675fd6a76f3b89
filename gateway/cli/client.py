"""The running gateway, for the commands that ask it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gateway.cli.running import located
from gateway.config import ConfigError, Problem, Server, find
from gateway.config.address import is_loopback
from gateway.config.loader import server_of
from gateway.config.problems import Unreadable
from gateway.errors import (
    CATEGORIES,
    KEY_NEEDED,
    GatewayError,
    ProviderInvalidRequest,
    ProviderInvalidResponse,
    ProviderUnavailable,
)

if TYPE_CHECKING:
    import ssl

    import httpx

PROBE_SECONDS = 3.0
"""Bound on a probe. Only a server that hangs takes this long: a closed port answers at once."""
ANSWER_SECONDS = 30.0
"""Bound on an operation of the gateway. A reload may have to wait for another one."""


def base_url(server: Server) -> str:
    """The address at which a client on this machine reaches a gateway configured as `server`."""
    if server.uds is not None:
        return "http://localhost"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(server.host, server.host)  # noqa: S104
    scheme = "http" if server.https is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{server.port}"


def address(server: Server) -> str:
    """For people: the socket, or the address as of `base_url`."""
    return str(server.uds) if server.uds is not None else base_url(server)


def transport(server: Server) -> httpx.HTTPTransport:
    """Raises ProviderInvalidRequest if the gateway serves https and its certificate can't be read."""
    import httpx

    return httpx.HTTPTransport(uds=str(server.uds) if server.uds is not None else None, verify=trust(server))


def trust(server: Server) -> ssl.SSLContext | bool:
    """What certificate to accept: the gateway's own, wherever `base_url` finds it."""
    if server.https is None:
        return True
    from gateway.server.tls import trusting

    return trusting(server.https.cert)


def trust_at(url: str, config: Path | None) -> ssl.SSLContext | bool:
    """What certificate to accept at the address: where it is the configured gateway's, that one.

    Raises ProviderInvalidRequest if that certificate can't be read.
    """
    server = configured(config, needed=False)
    return trust(server) if _is_own(url, server) else True


def _is_own(url: str, server: Server) -> bool:
    """Whether the https address is the configured gateway's, which needs no authority to vouch for it."""
    parts = urlsplit(url)
    own = parts.hostname is not None and (is_loopback(parts.hostname) or parts.hostname == server.host)
    return own and parts.scheme == "https" and server.https is not None


def key_for(server: Server) -> str | None:
    """The key for this user's own gateway."""
    return server.api_keys[0].get_secret_value() if server.api_keys else os.environ.get("CTXGATE_KEY")


def headers(server: Server) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if (key := key_for(server)) else {}


class RunningGateway:
    """A client of the running gateway, for any of its paths. Use it as a context manager."""

    def __init__(self, config: Path | None, url: str | None, port: int | None = None, *, find: bool = False) -> None:
        """Of this configuration, wherever it listens. find: if there is none, take any that this user runs."""
        import httpx

        server = configured(config, needed=url is None)
        if url is None:
            server = located(server, config, port=port, others=find and config is None)
        self.url: str = url or address(server)
        try:
            over = transport(server) if url is None or _is_own(url, server) else httpx.HTTPTransport()
            self._client = httpx.Client(
                base_url=url or base_url(server), transport=over, headers=headers(server), timeout=ANSWER_SECONDS
            )
        except (ValueError, httpx.InvalidURL) as error:
            raise ProviderInvalidRequest(f"{self.url!r} is no address: {error}") from None

    def ask(self, method: str, path: str, body: bytes | None = None, seconds: float = ANSWER_SECONDS) -> Any:
        """The JSON of the answer. Raises RefusedConfig if the gateway refuses a configuration, else a GatewayError.

        seconds: bound on the silence before the answer.
        """
        import httpx

        try:
            bounds = httpx.Timeout(ANSWER_SECONDS, read=seconds)
            response = self._client.request(method, path, content=body, timeout=bounds)
        except (httpx.HTTPError, UnicodeError) as error:  # UnicodeError: no host is called so
            raise ProviderUnavailable(f"no gateway answers at {self.url} ({error}); start it: ctxgate serve") from None
        try:
            answer = response.json()
        except ValueError:
            raise ProviderInvalidResponse(f"the server at {self.url} is not ctxgate") from None
        if response.status_code < 400:
            return answer
        problem = answer.get("error") if isinstance(answer, dict) else None
        refused = refusal(problem, f"{self.url} answered {response.status_code}")
        if refused.code == "invalid_configuration" and isinstance(problem, dict):
            raise RefusedConfig(refused.message, problem.get("problems", []))
        raise refused

    def __enter__(self) -> RunningGateway:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


def refusal(problem: object, otherwise: str) -> GatewayError:
    """The error that a gateway's answer holds, of its category. otherwise: the message where it holds none."""
    if not isinstance(problem, dict):
        problem = {"message": problem} if isinstance(problem, str) else {}
    known: dict[Any, type[GatewayError]] = {**CATEGORIES}
    made = known.get(str(problem.get("category")), ProviderInvalidResponse)
    message = str(problem.get("message", otherwise))
    if message == KEY_NEEDED:
        message += "; ctxgate's commands send the first of server.api_keys, else CTXGATE_KEY"
    return made(message, code=problem.get("code"))


class RefusedConfig(ConfigError):
    """The gateway's own message. It takes the text it was sent for its own file, and names that one."""

    def __init__(self, message: str, problems: list[dict[str, Any]]) -> None:
        super().__init__(())
        self.args = (message,)
        self._problems = problems

    def of(self, file: Path) -> ConfigError:
        """The same problems, placed in the file whose text was sent."""
        return ConfigError(
            tuple(Problem(each["message"], each["cure"], file, each["line"], each["column"]) for each in self._problems)
        )


def foreign(status: Any, file: Path) -> str | None:
    """The configuration of the gateway with that `/-/status`, if it is another one than `file`."""
    with contextlib.suppress(LookupError, TypeError):
        other = str(status["config"]["file"])
        if other and Path(other).resolve() != file.resolve():
            return other
    return None


def configured(config: Path | None, *, needed: bool = True) -> Server:
    """Reads `server` even from a file with mistakes: the gateway then still runs with an earlier version of it.

    The default if there is none, or mistakes hide it. Raises Unreadable for a file that is `needed` and can't be read.
    """
    try:
        return server_of(config if config is not None else find(), os.environ)
    except ConfigError as error:
        if needed and isinstance(error, Unreadable):
            raise
        return Server()

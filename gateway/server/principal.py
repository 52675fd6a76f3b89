"""Whose request it is: the principal that its key identifies. Code that needs no more than a name has a `Caller`."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from gateway.wire.chat import NOBODY, Caller, Meter
from gateway.wire.limits import Limits

Sharing = Literal["never", "tenant", "all"]
"""Who may reuse the beginning of another user's prompt: nobody, users of the same tenant, or everybody."""


class Principal(Struct, frozen=True, eq=False):
    """Whose stored objects a request may see (tenant and user), and what its API key allows.

    Endpoints find it in the ASGI scope under `SCOPE_KEY`. The path of a chat has a `Caller` instead
    (`gateway.wire.chat`), made from it: enough for usage accounting, and for sharing prompts.

    Two keys of one user are the same principal. key: the key's id; "" without one, and for a key of config.yaml.
    """

    tenant: str = "local"
    user: str = "local"
    scopes: frozenset[str] = frozenset({"*"})
    key: str = ""
    limits: Limits | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Principal) and self._who == other._who

    def __hash__(self) -> int:
        return hash(self._who)

    @property
    def _who(self) -> tuple[str, str, frozenset[str]]:
        return self.tenant, self.user, self.scopes

    def allows(self, scope: str) -> bool:
        """See `gateway.server.keys.Scope`."""
        return "*" in self.scopes or scope in self.scopes or scope.partition(":")[0] in self.scopes


LOCAL = Principal()
"""The caller without a key, if none is needed, or with a key of config.yaml: the owner of this machine."""


def owner_of(principal: Principal, sharing: Sharing) -> str:
    """Whose prompts an engine may reuse for the principal's requests; see `Caller`. sharing: `prompts.share_prefixes`
    of config.yaml."""
    tenant, user = principal.tenant, principal.user
    if sharing == "all" or (tenant == LOCAL.tenant and (sharing == "tenant" or user == LOCAL.user)):
        return ""
    return tenant if sharing == "tenant" else f"{tenant} {user}"  # no name contains a space


ANYBODY = Principal(tenant="", user="", scopes=frozenset())
"""The caller of a path that needs no key."""

STRANGER_KEY = "ctxgate.stranger"
"""The key in an ASGI scope that is true on the paths for anybody if the gateway has keys and the caller gave none of
them: then an answer says no more than whether the gateway runs."""

SCOPE_KEY = "ctxgate.principal"
CALLER_KEY = "ctxgate.caller"
"""Where a `Caller` is in an ASGI scope."""

ADMIT_KEY = "ctxgate.admit"
"""The key in an ASGI scope of a coroutine function, for what goes on for long: it looks at the caller's key again. It
raises GatewayError, ProviderAuthentication for one that is revoked."""

MAX_CLIENTS = 200
"""The most program names of one key to distinguish: a program may send any name, and the store keeps them."""
MAX_KNOWN = 1000
OTHERS = "other"


class Callers:
    """The `Caller` of each request, made once for each key and User-Agent."""

    def __init__(self, sharing: Sharing = "never") -> None:
        """sharing: see `owner_of`."""
        self._sharing: Sharing = sharing
        self._known: dict[tuple[str, bytes], tuple[Principal, Caller]] = {}
        self._names: dict[str, set[str]] = {}
        self._agent: bytes | None = None
        self._principal: Principal | None = None
        self._last = NOBODY
        """The caller with these: a comparison costs less than a table lookup."""

    def known(self, agent: bytes, principal: Principal) -> Caller | None:
        """agent: the User-Agent, b"" for none. None for one that `add` has yet to make."""
        if agent == self._agent and principal is self._principal:
            return self._last
        owner, found = self._known.get((principal.key, agent), (None, NOBODY))
        if owner is not principal:
            return None
        self._agent, self._principal, self._last = agent, principal, found
        return found

    def add(self, agent: bytes, principal: Principal, meter: Meter | None = None) -> Caller:
        """meter: of the principal's limits."""
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        made = Caller(principal.key, self._name(agent, principal.key), meter, owner_of(principal, self._sharing))
        self._known[principal.key, agent] = principal, made
        return made

    def _name(self, agent: bytes, key: str) -> str:
        name, names = client_name(agent), self._names.setdefault(key, set())
        if name not in names and len(names) >= MAX_CLIENTS:
            return OTHERS
        names.add(name)
        return name


_PROGRAM = re.compile(r"[!-~]{1,64}")
_VERSION = re.compile(r"/v?\d.*")


def client_name(agent: bytes) -> str:
    """The program that a User-Agent begins with, without its version: `OpenAI/Python 1.97.0` → `OpenAI/Python`."""
    found = _PROGRAM.match(agent.decode("latin-1"))
    return _VERSION.sub("", found[0]) if found is not None else ""

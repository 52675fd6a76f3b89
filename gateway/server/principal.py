"""The caller of a request."""

from __future__ import annotations

from msgspec import Struct


class Principal(Struct, frozen=True):
    """The caller that an API key identifies. Endpoints find it in the ASGI scope under `SCOPE_KEY`."""

    tenant: str = "local"
    user: str = "local"
    scopes: frozenset[str] = frozenset({"*"})

    def allows(self, scope: str) -> bool:
        """See `gateway.server.keys.Scope`."""
        return "*" in self.scopes or scope in self.scopes or scope.partition(":")[0] in self.scopes


LOCAL = Principal()
"""The caller without a key, if none is needed, or with a key of config.yaml: the owner of this machine."""

ANYBODY = Principal(tenant="", user="", scopes=frozenset())
"""The caller of a path that needs no key."""

SCOPE_KEY = "ctxgate.principal"

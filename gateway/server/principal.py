"""Who asks."""

from __future__ import annotations

from msgspec import Struct


class Principal(Struct, frozen=True):
    """What a request's API key stands for. Faces find it in the ASGI scope under `SCOPE_KEY`."""

    tenant: str = "local"
    user: str = "local"
    scopes: frozenset[str] = frozenset({"*"})

    def allows(self, scope: str) -> bool:
        """See `gateway.server.keys.Scope`."""
        return "*" in self.scopes or scope in self.scopes or scope.partition(":")[0] in self.scopes


LOCAL = Principal()
"""Who asks where no key is wanted, or with a key of config.yaml: the person whose machine this is."""

ANYBODY = Principal(tenant="", user="", scopes=frozenset())
"""Who asks for what needs no key."""

SCOPE_KEY = "ctxgate.principal"

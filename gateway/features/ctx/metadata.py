"""The text of an executable object: the runner's shebang, then the object's metadata. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config.hidden import hider
from gateway.config.names import Role
from gateway.config.values import Model
from gateway.features.ctx.control import USE_CASES, Capability, Routes, Session
from gateway.features.ctx.objects import ObjectName
from gateway.features.ctx.settings import UseCase

_SECRET = re.compile(
    r"(^|_)(api_?key|key|secret|password|passwd|authorization|credentials?|(access|auth)_?token|token)$", re.I
)
"""Names of request fields that may hold a secret."""

_CAPABILITIES: Mapping[str, Capability] = {"vision": "vision", "reasoning": "reasoning"}


@dataclass(frozen=True, slots=True)
class Projected:
    """An object as config.yaml describes it."""

    name: ObjectName
    display_name: str
    description: str
    type: str
    created_at: int | None
    owned_by: str
    context_length: int | None
    routes: Routes
    defaults: Mapping[str, object]
    session: Session
    capabilities: tuple[Capability, ...]
    native: Mapping[str, object]

    def metadata(self, shebang: str) -> str:
        """One line per key, the seven of the listing first."""
        values: dict[str, object] = {
            "id": self.name.name,
            "name": self.display_name,
            "description": self.description,
            "type": self.type,
            "created_at": self.created_at,
            "owned_by": self.owned_by,
            "context_length": self.context_length,
            "object": self.name,
            "driver": ",".join(self.routes.table.get("default", ())),
            **{f"driver.{use}": ",".join(self.routes.table[use]) for use in USE_CASES if use in self.routes.table},
            "session": self.session,
            # The status has a file of its own: this text changes only with the configuration.
            "status": f"{self.name.name.rpartition('/')[2]}.d/status",
            "cap": ",".join(self.capabilities),
        }
        return f"#!{shebang}\n" + "".join(f"# cortexfs.{key}={one_line(value)}\n" for key, value in values.items())


def echo() -> Projected:
    """The built-in `debug/echo`."""
    return Projected(
        name=ObjectName("model", "debug/echo"),
        display_name="echo",
        description="Built-in debug echo model",
        type="debug",
        created_at=None,
        owned_by="ctxgate",
        context_length=None,
        routes=Routes({"default": ("debug",)}),
        defaults={},
        session="socket",
        capabilities=capabilities(None, "socket"),
        native={"runtime": "echo"},
    )


def projected(
    name: ObjectName, model: Model, routes: Mapping[UseCase, tuple[str, ...]], session: Session, created_at: int | None
) -> Projected:
    """A model of config.yaml. routes: empty for the runtime's own. created_at: of its weights, seconds since 1970.

    Only a chat has a session: vectors, scores and sound don't depend on what was asked before.
    """
    session = session if model.role == "chat" else "none"
    address = model.base_url or (f"unix:{model.uds}" if model.uds is not None else None)
    return Projected(
        name=name,
        display_name=model.display_name or model.name,
        description=f"{model.display_name or model.name}, served by ctxgate with {model.runtime}",
        type="debug" if model.runtime == "echo" else model.role,
        created_at=created_at,
        owned_by=name.name.partition("/")[0],
        context_length=model.context_window,
        routes=Routes(routes or _routes(model)),
        defaults={key: value for key, value in model.shown_defaults.items() if not _SECRET.search(key)},
        session=session,
        capabilities=capabilities(model, session),
        native={
            "model": model.name,
            "runtime": model.runtime,
            "native_id": model.upstream_name,
            "address": hider(model.secrets)(address) if address is not None else None,
            "weights": model.path,
            "tool_call_format": model.tool_call_format,
        },
    )


_BY_ROLE: Mapping[Role, dict[UseCase, tuple[str, ...]]] = {
    "embedding": {"default": ("openai-embeddings",)},
    "rerank": {"default": ("openai-rerank",)},
    "transcription": {"default": ("openai-transcriptions",)},
    "speech": {"default": ("openai-speech",)},
    "image": {"default": ("openai-images",)},
}


_OF_ROLES: Mapping[Role, tuple[Capability, ...]] = {
    "embedding": ("embedding",),
    "rerank": ("rerank",),
    "transcription": ("audio_input",),
    "speech": ("audio_output",),
}


def _routes(model: Model) -> dict[UseCase, tuple[str, ...]]:
    if model.runtime == "echo":
        return {"default": ("debug",)}
    chat = ("openai-chat",)
    return _BY_ROLE.get(model.role) or {
        "default": chat,
        "exec": chat,
        "socket": chat,
        # Only the gateway's own path mends what an engine of ours writes.
        "agent": ("openai-responses", "openai-chat") if model.runtime == "openai" else chat,
    }


def capabilities(model: Model | None, session: Session) -> tuple[Capability, ...]:
    """What an object can do. model: None for the built-in echo.

    The gateway reads calls in the text of any model and makes every answer conform to a schema, whatever the engine
    can; a model whose `capabilities` leave out `tool_calling` is one that a person found unable to call.
    """
    if model is not None and model.role != "chat":
        return _OF_ROLES.get(model.role, ())
    found: list[Capability] = ["chat", "stream"]
    if session == "socket":
        found.append("session")
    if model is not None and model.runtime != "echo":
        found.append("json_schema")
        if not model.capabilities or "tool_calling" in model.capabilities:
            found.append("tool_call_syntax")
        found += [_CAPABILITIES[word] for word in model.capabilities if word in _CAPABILITIES]
    return tuple(found)


def one_line(value: object) -> str:
    return "" if value is None else " ".join(str(value).split())

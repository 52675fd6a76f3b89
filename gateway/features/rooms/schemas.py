"""The JSON of the API: requests, rooms, messages, events."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.errors import ProviderInvalidRequest
from gateway.features.rooms.states import State

MAX_PROSE = 20_000
"""Characters."""

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Identifier = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/+-]*$")]
Prose = Annotated[str, Meta(max_length=MAX_PROSE)]
Metadata: TypeAlias = dict[str, Any]
ReleaseMode = Literal["graceful", "immediate"]

MAX_METADATA_BYTES = 32 * 1024
MAX_CONTENT_CHARS = 200_000


class Actor(Struct, forbid_unknown_fields=True):
    """An agent of a room.

    provider: `local` (the default) for the gateway itself, or a name from `rooms.providers` in config.yaml.
    model: the active one by default. adapter: stored, but unused; the gateway runs every turn.
    """

    agent_id: Identifier = "assistant-1"
    role: Name = "assistant"
    adapter: Name | None = None
    provider: Identifier | None = None
    model: Name | None = None
    skills: Annotated[list[Name], Meta(max_length=50)] = []
    instructions: Prose | None = None
    """The first part of the system message."""
    context_window: Annotated[int, Meta(ge=256)] | None = None
    """The model's window in tokens; null: `context_window` of config.yaml, else 8,192."""


class WakePolicy(Struct, forbid_unknown_fields=True):
    on_message: bool = True
    """Whether a message wakes a sleeping room. If not, it stays queued until `wake`."""


class DonePolicy(Struct, forbid_unknown_fields=True):
    after_turn: Literal["idle", "sleep", "release"] = "idle"
    """What the room does after it has answered."""
    idle_seconds: Annotated[float, Meta(gt=0)] | None = None
    """Seconds until an idle room sleeps; null: `rooms.idle_seconds` of config.yaml."""


class TurnBounds(Struct, forbid_unknown_fields=True):
    """Bounds of each turn. Only those tighter than config.yaml's have an effect."""

    wall_seconds: Annotated[float, Meta(gt=0)] | None = None
    model_calls: Annotated[int, Meta(ge=1)] | None = None
    tool_calls: Annotated[int, Meta(ge=0)] | None = None
    output_tokens: Annotated[int, Meta(ge=1)] | None = None


Mounts = Annotated[list[Identifier], Meta(max_length=16)]
Globs = Annotated[list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(max_length=100)]


class ToolPolicy(Struct, forbid_unknown_fields=True):
    """The tools up to `access` that `allow` matches and `deny` doesn't. Without `access` there are none."""

    access: Literal["read", "edit", "full"] | None = None
    allow: Globs = msgspec.field(default_factory=lambda: ["*"])
    deny: Globs = []


class Rent(Struct, forbid_unknown_fields=True):
    """`agents` and `actors` are two names for one list. The default is one assistant."""

    purpose: Prose | None = None
    metadata: Metadata = {}
    agents: Annotated[list[Actor], Meta(min_length=1, max_length=16)] | None = None
    actors: Annotated[list[Actor], Meta(min_length=1, max_length=16)] | None = None
    tool_policy: ToolPolicy | None = None
    wake_policy: WakePolicy = msgspec.field(default_factory=WakePolicy)
    done_policy: DonePolicy = msgspec.field(default_factory=DonePolicy)
    bounds: TurnBounds = msgspec.field(default_factory=TurnBounds)
    mounts: Mounts = []
    """Names from `rooms.mounts` in config.yaml; the tools see each as `/mnt/NAME`."""


class Update(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Omitted fields stay unchanged."""

    purpose: Prose | UnsetType | None = UNSET
    metadata: Metadata | UnsetType = UNSET
    agents: Annotated[list[Actor], Meta(min_length=1, max_length=16)] | UnsetType = UNSET
    actors: Annotated[list[Actor], Meta(min_length=1, max_length=16)] | UnsetType = UNSET
    tool_policy: ToolPolicy | UnsetType | None = UNSET
    wake_policy: WakePolicy | UnsetType = UNSET
    done_policy: DonePolicy | UnsetType = UNSET
    bounds: TurnBounds | UnsetType = UNSET
    mounts: Mounts | UnsetType = UNSET
    summary_text: Prose | UnsetType | None = UNSET
    """Replaces the actors' summaries of the past that they no longer see verbatim."""


class TextPart(Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


class Say(Struct, forbid_unknown_fields=True):
    """A message to the room."""

    content: str | list[TextPart]
    kind: Literal["task"] = "task"
    metadata: Metadata = {}
    agent_id: Identifier | None = None
    """The actor that answers; the first by default."""

    def text(self) -> str:
        """The text. Raises ProviderInvalidRequest if it is empty or too long."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        if not text:
            raise ProviderInvalidRequest("content: must not be empty", param="content")
        if len(text) > MAX_CONTENT_CHARS:
            raise ProviderInvalidRequest(f"content: longer than {MAX_CONTENT_CHARS} characters", param="content")
        return text


class Wake(Struct, forbid_unknown_fields=True):
    retry: bool = True
    """Whether a failed room answers the failed message after all; if not, that stays failed."""


class Interrupt(Struct, forbid_unknown_fields=True):
    reason: Prose | None = None


class Release(Struct, forbid_unknown_fields=True):
    mode: ReleaseMode = "graceful"
    """graceful: after the running turn. immediate: at its next safe point, between two steps."""
    reason: Prose | None = None


class Made(Struct, forbid_unknown_fields=True):
    """A room from a template."""

    metadata: Metadata = {}
    content: str | None = None
    """Its first message."""


class Template(Struct, kw_only=True):
    """A template of config.yaml, and the room that it makes."""

    name: str
    description: str | None
    room: Rent


class Defined(Struct, forbid_unknown_fields=True):
    """A model of records. schema: a JSON Schema of type object, without patterns."""

    schema: dict[str, Any]
    description: Prose = ""


class Secret(Struct, forbid_unknown_fields=True):
    """A provider's key. `metadata.provider` names the provider."""

    name: Name
    value: Annotated[str, Meta(min_length=1, max_length=8192, pattern=r"^[!-~]+$")]
    kind: Literal["api_key"] = "api_key"
    metadata: Metadata = {}


class Compacted(Struct):
    """A summary of the room's past up to a message, for one actor."""

    through_seq: int
    text: str


class LastError(Struct, omit_defaults=True):
    message: str
    code: str
    category: str | None = None


class Room(Struct, kw_only=True):
    """A room in the API's answers."""

    id: str
    status: State
    purpose: str | None
    metadata: Metadata
    agents: list[Actor]
    actors: list[Actor]
    tool_policy: ToolPolicy | None
    wake_policy: WakePolicy
    done_policy: DonePolicy
    bounds: TurnBounds
    mounts: list[str]
    summary_text: str | None
    last_error: LastError | None
    rented_at: str
    updated_at: str
    last_active_at: str | None
    queued_message_id: str | None
    running_message_id: str | None
    failed_message_id: str | None
    """The message whose turn failed; `wake` runs it again."""


MessageStatus = Literal["queued", "running", "done", "limited", "interrupted", "cancelled", "failed"]


class Message(Struct, kw_only=True):
    """A message of a room. status: that of the turn that answers it; `done` for an output."""

    id: str
    seq: int
    author_kind: Literal["user", "agent", "assistant", "system"]
    kind: Literal["task", "output"]
    content: str | list[TextPart]
    actor_key: str | None
    in_reply_to: str | None
    metadata: Metadata
    status: MessageStatus
    created_at: str

    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Event(Struct, kw_only=True):
    """An event of a room. id: unique among all rooms. seq: counts the room's events from 1, without gaps."""

    id: str
    seq: int
    event_type: str
    agent_key: str | None
    message_id: str | None
    payload: dict[str, Any]
    created_at: str


class History(Struct, kw_only=True):
    """A page of a room's past. more: whether more events or messages follow."""

    room: Room
    messages: list[Message]
    events: list[Event]
    more: bool


class SecretShown(Struct, kw_only=True):
    """A secret without its value."""

    id: str
    name: str
    kind: str
    metadata: Metadata
    created_at: str


encode = msgspec.json.Encoder().encode


def check_metadata(metadata: Metadata) -> None:
    if len(encode(metadata)) > MAX_METADATA_BYTES:
        raise ProviderInvalidRequest(f"metadata: more than {MAX_METADATA_BYTES} bytes", param="metadata")

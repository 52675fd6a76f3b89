"""A turn of a room: its provider, tools and history. Writes its steps as events, and resumes from such events."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gateway.agent.inprocess import provider as local_provider
from gateway.agent.turn import (
    Bounds,
    CallRefused,
    LimitReached,
    ModelAnswered,
    ModelCalled,
    Result,
    Step,
    TextGrew,
    ToolAnswered,
    ToolCalled,
    Turn,
    Used,
    dump,
    refusal,
)
from gateway.config import Config
from gateway.config.hidden import HIDDEN, hider
from gateway.core import Gateway
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.provider import (
    AssistantMessage,
    OpenAIProvider,
    RuntimeConfig,
    SystemMessage,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from gateway.provider import Message as Said
from gateway.rooms.schemas import Actor, Event, Message, ToolPolicy, TurnBounds
from gateway.rooms.transaction import Data
from gateway.rooms.vault import Vault
from gateway.rooms.workspace import folder
from gateway.tools import Catalogue, ToolContext, ToolRow
from gateway.tools import ToolPolicy as Policy

if TYPE_CHECKING:
    from gateway.store import Store

LOCAL = "local"
"""The provider name of the gateway itself."""

PAST_MESSAGES, PAST_CHARS = 40, 24_000
"""The most of a room's earlier messages that a turn sends to the model; the newest ones count."""

Record = Callable[[str, Mapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The input of a turn. past: the messages before this one. recorded: the message's events so far."""

    room_id: str
    tenant: str
    user: str
    message: Message
    actor: Actor
    data: Data
    past: Sequence[Message]
    recorded: Sequence[Event]

    @property
    def resumed(self) -> bool:
        """Whether the turn began before and was cut off."""
        return any(event.event_type == "agent:turn_start" for event in self.recorded)


class Agent:
    """Runs turns. One serves all rooms."""

    def __init__(self, gateway: Gateway, store: Store, vault: Vault) -> None:
        self._gateway = gateway
        self._store = store
        self._vault = vault

    @cached_property
    def _catalogue(self) -> Catalogue:
        from gateway.rooms.lifecycle import TOOLS
        from gateway.tools import catalogue

        return catalogue(self._gateway.config.rooms.tools, TOOLS)

    def check_policy(self, policy: ToolPolicy | None) -> None:
        """Raises ProviderInvalidRequest for an unknown tool: a misspelt name under `deny` would forbid nothing."""
        if policy is None:
            return
        for key, globs in (("allow", policy.allow), ("deny", policy.deny)):
            for index, glob in enumerate(globs):
                if glob != "*" and not self._catalogue.known(glob):
                    param = f"tool_policy.{key}[{index}]"
                    raise ProviderInvalidRequest(
                        f"{param}: {glob!r} names no tool; see docs/room-tools.md", param=param
                    )

    async def run(self, task: Task, record: Record, stop: Callable[[], bool]) -> tuple[Result, Used]:
        """Runs the turn, or resumes it. Raises GatewayError if the model can't be asked, and what `record` raises."""
        policy = task.data.tool_policy
        context = ToolContext(
            tenant=task.tenant,
            user=task.user,
            folder=folder(self._gateway.config, task.tenant, task.room_id),
            store=self._store,
            policy=Policy(policy.access, tuple(policy.allow), tuple(policy.deny)) if policy is not None else Policy(),
            complete=self._complete,
        )
        before = Before(task.recorded)
        tools = TurnTools(self._catalogue, context, before)
        said = [*_opening(task), *before.said]
        if before.said and isinstance(last := before.said[-1], AssistantMessage) and not last.tool_calls:
            return Result("completed", last.content), before.used  # it was cut off after its last step
        secret = await self._secret(task)
        hide = self._hide(secret)
        recorder = _Recorder(record, tools, hide)
        bounds = bounds_of(self._gateway.config, task.data.bounds)
        async with self._provider(task.actor, secret) as provider:
            turn = Turn(provider, tools, bounds, recorder, stop=stop, config=RuntimeConfig(), used=before.used)
            try:
                result = await turn.run(said)
            except GatewayError as error:
                error.message = hide(error.message)
                raise
        return Result(result.outcome, hide(result.text), result.limit), turn.used

    def _hide(self, secret: str | None) -> Callable[[str], str]:
        """Hides, in a text that a provider wrote or that is about one, the user's key and what the configuration has
        from variables, such as the provider's address."""
        if secret is None:
            return str
        configured = hider(self._gateway.config.secrets)
        return lambda text: configured(text.replace(secret, HIDDEN))

    async def _secret(self, task: Task) -> str | None:
        name = task.actor.provider or LOCAL
        if name == LOCAL:
            return None
        return await self._vault.key_for(task.tenant, task.user, name)

    def _provider(self, actor: Actor, secret: str | None) -> AbstractAsyncContextManager[OpenAIProvider]:
        config = self._gateway.config
        if secret is None:
            return nullcontext(local_provider(self._gateway, config.resolve(actor.model).name, "rooms"))
        base_url = config.rooms.providers.get(actor.provider or "")
        if base_url is None:
            raise unknown_provider(config, actor.provider or "")
        return OpenAIProvider(base_url, actor.model or "default", api_key=secret)

    async def _complete(self, model: str, system: str, prompt: str, *, max_tokens: int) -> str:
        provider = local_provider(self._gateway, self._gateway.config.resolve(model).name, "rooms")
        messages: list[Said] = [SystemMessage(system), UserMessage(prompt)]
        response = await provider.complete(messages, config=RuntimeConfig(max_tokens=max_tokens))
        return response.message.content


def check_actors(config: Config, actors: Sequence[Actor]) -> None:
    """Raises ProviderInvalidRequest or ProviderInvalidModel for an actor whose every turn would fail."""
    if len({actor.agent_id for actor in actors}) < len(actors):
        raise ProviderInvalidRequest("agents: each needs an agent_id of its own", param="agents")
    for actor in actors:
        if (actor.provider or LOCAL) == LOCAL:
            config.resolve(actor.model, "chat")
        elif actor.provider not in config.rooms.providers:
            raise unknown_provider(config, str(actor.provider))


def unknown_provider(config: Config, name: str) -> ProviderInvalidRequest:
    known = ", ".join((LOCAL, *config.rooms.providers))
    message = f"unknown provider {name!r}; rooms.providers in config.yaml has: {known}"
    return ProviderInvalidRequest(message, code="provider_unknown", param="agents")


def bounds_of(config: Config, asked: TurnBounds) -> Bounds:
    """The tighter of the configuration's and the room's bounds."""
    most = config.rooms

    def least(bound: float, other: float | None) -> float:
        return bound if other is None else min(bound, other)

    return Bounds(
        wall_seconds=least(most.turn_seconds, asked.wall_seconds),
        model_calls=int(least(most.turn_model_calls, asked.model_calls)),
        tool_calls=int(least(most.turn_tool_calls, asked.tool_calls)),
        output_tokens=int(least(most.turn_output_tokens, asked.output_tokens)),
    )


def _opening(task: Task) -> Iterator[Said]:
    """The messages a turn starts with: the system message, the room's history, and the user's message."""
    about = [
        task.actor.instructions,
        f"The purpose of this room: {task.data.purpose}" if task.data.purpose else None,
        f"Your skills: {', '.join(task.actor.skills)}" if task.actor.skills else None,
        f"What happened so far: {task.data.summary_text}" if task.data.summary_text else None,
    ]
    if system := "\n\n".join(part for part in about if part):
        yield SystemMessage(system)
    history: list[Said] = []
    left = PAST_CHARS
    for message in reversed(task.past[-PAST_MESSAGES:]):
        text = message.text()
        left -= len(text)
        if left < 0:
            break
        if text and message.status not in ("queued", "cancelled"):
            history.append(UserMessage(text) if message.author_kind == "user" else AssistantMessage(text))
    # A conversation starts with a user message.
    while history and isinstance(history[-1], AssistantMessage):
        history.pop()
    yield from reversed(history)
    yield UserMessage(task.message.text())


class Before:
    """What a turn had done before it was cut off, read from its events."""

    def __init__(self, recorded: Sequence[Event]) -> None:
        self.used = Used()
        self.said: list[Said] = []
        self.started: dict[str, int] = {}
        """Id of each tool call without a result → how often it began."""
        self.redacted: set[str] = set()
        """Ids of tool calls whose arguments were redacted in the record."""
        for event in recorded:
            self._add(event.event_type, event.payload)

    def _add(self, kind: str, payload: Mapping[str, Any]) -> None:
        used = self.used
        match kind:
            case "agent:model_call":
                used.model_calls = payload["call"]
            case "agent:message":
                calls = [ToolCall(call["id"], call["name"], call["arguments"]) for call in payload["tool_calls"]]
                self.redacted.update(call["id"] for call in payload["tool_calls"] if call.get("redacted"))
                for name, count in payload["usage"].items():
                    used.usage[name] += count or 0
                used.output_tokens += payload["usage"]["output"] or 0
                if payload["content"] or calls:
                    self.said.append(AssistantMessage(payload["content"], calls))
            case "tool:refused":
                used.tool_calls += 1
                self.said += refusal(CallRefused(**payload))
            case "tool:call":
                used.tool_calls += 1
                self.started[payload["call_id"]] = self.started.get(payload["call_id"], 0) + 1
            case "tool:result":
                self.started.pop(payload["call_id"], None)
                self.said.append(ToolMessage(dump(payload["result"]), payload["call_id"]))


class TurnTools:
    """The catalogue as the model sees it. Names have `_` for `.`, since not every chat template takes dots."""

    def __init__(self, catalogue: Catalogue, context: ToolContext, before: Before) -> None:
        self._catalogue = catalogue
        self._context = context
        self._before = before
        self._rows = {row.name.replace(".", "_"): row for row in catalogue.rows(context.policy)}
        self.tools = [Tool(name, row.description, row.parameters) for name, row in self._rows.items()]

    def name(self, called: str) -> str:
        """The catalogue's name of the tool that the model called."""
        row = self._rows.get(called)
        return row.name if row is not None else called

    def recorded(self, call: ToolCall) -> tuple[dict[str, Any], bool]:
        """A call's arguments without secrets, for the record; and whether anything was redacted."""
        arguments = dict(call.arguments or {})
        redacted = self._catalogue.recorded(self.name(call.name), arguments)
        return redacted, redacted != arguments

    def refused(self, called: str, arguments: str) -> dict[str, str]:
        """Replacements for a refused call's arguments and reason, where these may hold secrets; else empty."""
        try:
            written = json.loads(arguments)
        except (ValueError, RecursionError):
            return {}
        shown, redacted = self.recorded(ToolCall("", called, written if isinstance(written, dict) else {}))
        return {"arguments": json.dumps(shown), "reason": "the arguments break the tool's schema"} if redacted else {}

    def lost(self, call: ToolCall) -> bool:
        """Whether the call began before the turn was cut off and must not run again: it may have had its effect."""
        if call.id in self._before.redacted:
            return True
        row: ToolRow | None = self._rows.get(call.name)
        return call.id in self._before.started and (row is None or not row.idempotent)

    def attempt(self, call: ToolCall) -> int:
        return self._before.started.get(call.id, 0) + 1

    async def run(self, call: ToolCall) -> Mapping[str, Any]:
        if self.lost(call):
            message = "the gateway stopped during this call: it may have taken effect; check before you repeat it"
            return {"error": {"code": "tool_interrupted", "message": message}}
        return await self._catalogue.run(self._context, self.name(call.name), dict(call.arguments or {}))


class _Recorder:
    """Records the steps of a turn as the room's events."""

    def __init__(self, record: Record, tools: TurnTools, hide: Callable[[str], str]) -> None:
        self._record = record
        self._tools = tools
        self._hide = hide

    async def __call__(self, step: Step) -> None:
        if (event := self._event(step)) is not None:
            event_type, payload = event
            await self._record(event_type, _hidden(payload, self._hide))

    def _event(self, step: Step) -> tuple[str, dict[str, Any]] | None:
        tools = self._tools
        match step:
            case ModelCalled(call):
                return "agent:model_call", {"call": call}
            case TextGrew(call, text):
                return "agent:update", {"call": call, "text": text}
            case ModelAnswered(call, message, finish_reason, usage):
                calls = []
                for made in message.tool_calls:
                    arguments, redacted = tools.recorded(made)
                    entry = {"id": made.id, "name": made.name, "arguments": arguments}
                    calls.append({**entry, "redacted": True} if redacted else entry)
                tokens = {
                    "input": usage.prompt_tokens,
                    "output": usage.completion_tokens,
                    "total": usage.total_tokens,
                }
                return "agent:message", {
                    "call": call,
                    "content": message.content,
                    "tool_calls": calls,
                    "finish_reason": finish_reason,
                    "usage": tokens,
                }
            case CallRefused(call, name, arguments, reason, text):
                refused = {"call": call, "name": name, "arguments": arguments, "reason": reason, "text": text}
                return "tool:refused", {**refused, **tools.refused(name, arguments)}
            case ToolCalled(call):
                if tools.lost(call):
                    return None  # it doesn't run again
                arguments, _ = tools.recorded(call)
                called = {"call_id": call.id, "name": tools.name(call.name), "arguments": arguments}
                return "tool:call", {**called, "attempt": tools.attempt(call)}
            case ToolAnswered(call, result):
                answered = {"call_id": call.id, "name": tools.name(call.name), "ok": "error" not in result}
                return "tool:result", {**answered, "result": dict(result)}
            case LimitReached(limit, bound):
                return f"limit:{limit}", {"bound": bound}


def _hidden(value: Any, hide: Callable[[str], str]) -> Any:
    """The JSON value with all its texts hidden by `hide`."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hide(name): _hidden(inner, hide) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(inner, hide) for inner in value]
    return value

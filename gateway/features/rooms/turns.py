"""A turn of a room: its provider, tools and history. Writes its steps as events, and resumes from such events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.config import Config, Model
from gateway.config.hidden import HIDDEN, hider
from gateway.core import Gateway
from gateway.errors import GatewayError, ProviderInvalidRequest
from gateway.feature import offered
from gateway.features.agents.inprocess import complete, summary_writer
from gateway.features.agents.inprocess import provider as local_provider
from gateway.features.agents.settings import Rooms
from gateway.features.agents.tools import Catalogue, Source, Toolbox, ToolContext
from gateway.features.agents.tools import ToolPolicy as Policy
from gateway.features.agents.turn import (
    Bounds,
    CallRefused,
    LimitReached,
    ModelAnswered,
    ModelCalled,
    ModelFailed,
    Result,
    Step,
    TextGrew,
    ToolAnswered,
    ToolCalled,
    Turn,
    Used,
)
from gateway.features.agents.window import PastTurn
from gateway.features.rooms import transaction
from gateway.features.rooms.compaction import UNKNOWN_WINDOW, Measure, RoomWindow
from gateway.features.rooms.history import Before, past_turn
from gateway.features.rooms.schemas import Actor, Event, Message, ToolPolicy, TurnBounds
from gateway.features.rooms.summary import Summariser
from gateway.features.rooms.transaction import Data
from gateway.features.rooms.vault import Vault
from gateway.features.rooms.workspace import folder, mounted
from gateway.observe.shares import tenant
from gateway.provider import (
    AssistantMessage,
    OpenAIProvider,
    Retry,
    Tool,
    ToolCall,
    UserMessage,
)
from gateway.provider import Message as Said
from gateway.provider.mapping.openai import write_messages, write_tools
from gateway.provider.validation import conforming
from gateway.request.token_estimate import estimate
from gateway.server.principal import Principal, owner_of
from gateway.wire.chat import Caller, ChatRequest, encode

if TYPE_CHECKING:
    from gateway.store import Store

LOCAL = "local"
"""The provider name of the gateway itself."""

SPARE = 256
"""Tokens that a chat template may add beyond the size of JSON's own syntax."""
MEASURED = 1000
"""Models whose windows are remembered."""

Record = Callable[[str, Mapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The input of a turn. recorded: the message's events so far."""

    room_id: str
    tenant: str
    user: str
    message: Message
    actor: Actor
    data: Data
    recorded: Sequence[Event]

    @property
    def resumed(self) -> bool:
        """Whether the turn began before and was cut off."""
        return any(event.event_type == "agent:turn_start" for event in self.recorded)


class Agent:
    """Runs turns. One serves all rooms."""

    def __init__(
        self,
        gateway: Gateway,
        store: Store,
        vault: Vault,
        sources: Callable[[], Iterable[Source]] = tuple,
    ) -> None:
        """sources: see `gateway.features.agents.tools.catalogue.catalogue`."""
        self._sources = sources
        self._gateway = gateway
        self._store = store
        self._vault = vault
        self._measures: dict[tuple[str, str | None, int], Measure] = {}

    @cached_property
    def _catalogue(self) -> Catalogue:
        from gateway.features.agents.tools import catalogue
        from gateway.features.rooms.lifecycle import TOOLS

        return catalogue(self._gateway.config.section(Rooms).tools, TOOLS, self._sources)

    @cached_property
    def _hosted(self) -> Catalogue:
        """The tools of rooms that work in a folder of this machine."""
        from gateway.features.agents.tools.host import tools

        return Catalogue(tools(self._gateway.config.section(Rooms).tools), self._sources)

    def check_policy(self, policy: ToolPolicy | None, *, hosted: bool = False) -> None:
        """Raises ProviderInvalidRequest for an unknown tool: a misspelt name under `deny` would forbid nothing.

        hosted: whether the room works in a folder of this machine.
        """
        if policy is None:
            return
        catalogue = self._hosted if hosted else self._catalogue
        for key, globs in (("allow", policy.allow), ("deny", policy.deny)):
            for index, glob in enumerate(globs):
                if glob != "*" and not catalogue.known(glob):
                    param = f"tool_policy.{key}[{index}]"
                    raise ProviderInvalidRequest(
                        f"{param}: {glob!r} names no tool; see docs/room-tools.md", param=param
                    )

    async def run(self, task: Task, record: Record, stop: Callable[[], bool]) -> tuple[Result, Used]:
        """Runs the turn, or resumes it. Raises GatewayError if the model can't be asked, and what `record` raises."""
        tenant.set(task.tenant)  # a turn that an earlier process began is resumed by nobody
        policy = task.data.tool_policy
        permitted = Policy(policy.access, tuple(policy.allow), tuple(policy.deny)) if policy is not None else Policy()
        before = Before(task.recorded)
        said = [UserMessage(task.message.text()), *before.said]
        if before.said and isinstance(last := before.said[-1], AssistantMessage) and not last.tool_calls:
            return Result("completed", last.text), before.used  # it was cut off after its last step
        catalogue = self._catalogue if task.data.folder is None else self._hosted
        writer = await asyncio.to_thread(summary_writer, self._gateway.config)
        toolbox = await catalogue.toolbox(permitted, self._context(task, writer))
        for server, missing in toolbox.missing.items():
            await record("tool:missing", {"server": server, "code": missing.code, "message": missing.message})
        tools = TurnTools(toolbox, before)
        secret = await self._secret(task)
        hide = self._hide(secret)
        recorder = _Recorder(record, tools, hide)
        bounds = bounds_of(self._gateway.config, task.data.bounds)
        async with self._provider(task, secret) as provider:
            retry = Retry(max_attempts=1 + self._gateway.config.section(Rooms).turn_retries)
            window = self._window(task, tools, record, bounds, writer)
            turn = Turn(provider, tools, bounds, recorder, stop=stop, used=before.used, window=window, retry=retry)
            try:
                result = await turn.run(said)
            except GatewayError as error:
                error.message = hide(error.message)
                raise
        return Result(result.outcome, hide(result.text), result.limit), turn.used

    def _window(self, task: Task, tools: TurnTools, record: Record, bounds: Bounds, writer: Model) -> RoomWindow:
        config, actor = self._gateway.config, task.actor
        local = config.resolve(actor.model) if (actor.provider or LOCAL) == LOCAL else None
        known = [size for size in (actor.context_window, local and local.context_window) if size]
        size = min(known, default=UNKNOWN_WINDOW)
        if len(self._measures) >= MEASURED:
            self._measures.clear()
        key = (actor.provider or LOCAL, local.name if local is not None else actor.model, size)
        measure = self._measures.setdefault(key, Measure(size))
        return RoomWindow(
            actor.agent_id,
            _system(task),
            task.data.compacted(actor.agent_id),
            partial(self._past, task, tools),
            partial(self._count, local),
            Summariser(
                partial(self._complete, task),
                writer.name,
                writer.context_window or UNKNOWN_WINDOW,
                bounds.wall_seconds / 2,
            ),
            record,
            measure,
            bounds.output_tokens,
        )

    async def _past(self, task: Task, tools: TurnTools, after: int, maximum: int) -> Sequence[PastTurn]:
        found = await self._store.read(
            lambda connection: transaction.earlier(connection, task.room_id, after, task.message.seq, maximum)
        )
        return [past_turn(recorded, tools.takes) for recorded in found] if found else []

    async def _count(self, local: Model | None, messages: Sequence[Said], tools: Sequence[Tool]) -> int:
        """The conversation's tokens: counted by the model's engine if it is local and they may be too many."""
        name = local.name if local is not None else "default"
        fields = {"model": name, **write_messages(messages), **({"tools": write_tools(tools)} if tools else {})}
        body = encode(fields)
        request = ChatRequest.parse(body, "rooms")
        if local is None or len(body) + SPARE < (local.context_window or UNKNOWN_WINDOW) * 3 // 4:
            return estimate(request)  # a token has at least a byte: it fits
        return (await self._gateway.count_tokens(request)).tokens

    def _context(self, task: Task, writer: Model) -> ToolContext:
        from gateway.features.agents.tools.data import records

        config = self._gateway.config
        files = Path(task.data.folder or folder(config, task.tenant, task.room_id))
        if task.data.folder == "":
            files.mkdir(parents=True, exist_ok=True, mode=0o700)
        return ToolContext(
            files=files,
            records=lambda: records(config.section(Rooms).tools, self._store, task.tenant),
            complete=partial(self._complete, task),
            mounts=mounted(config, task.tenant, task.data.mounts),
            share=task.tenant,
            writer=writer.name,
        )

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

    def _provider(self, task: Task, secret: str | None) -> AbstractAsyncContextManager[OpenAIProvider]:
        config, actor = self._gateway.config, task.actor
        if secret is None and task.data.folder is not None and actor.adapter:
            # An agent of /ctx asks its model as its object says.
            provider: Callable[[Gateway, str, str], OpenAIProvider] = offered("agent_provider")
            return nullcontext(provider(self._gateway, actor.adapter, config.resolve(actor.model).name))
        if secret is None:
            name = config.resolve(actor.model).name
            return nullcontext(local_provider(self._gateway, name, "rooms", self._caller(task)))
        base_url = config.section(Rooms).providers.get(actor.provider or "")
        if base_url is None:
            raise unknown_provider(config, actor.provider or "")
        return OpenAIProvider(base_url, actor.model or "default", api_key=secret)

    def _caller(self, task: Task) -> Caller:
        """Who asks the models of the gateway: the user whose message it is."""
        sharing = self._gateway.config.prompts.share_prefixes
        return Caller(owner=owner_of(Principal(task.tenant, task.user), sharing))

    async def _complete(self, task: Task, model: str, system: str, prompt: str, *, max_tokens: int) -> str:
        retry = Retry(max_attempts=1 + self._gateway.config.section(Rooms).turn_retries)
        caller = self._caller(task)
        return await complete(
            self._gateway, "rooms", model, system, prompt, max_tokens=max_tokens, retry=retry, caller=caller
        )


def check_actors(config: Config, actors: Sequence[Actor]) -> None:
    """Raises ProviderInvalidRequest or ProviderInvalidModel for an actor whose every turn would fail."""
    if len({actor.agent_id for actor in actors}) < len(actors):
        raise ProviderInvalidRequest("agents: each needs an agent_id of its own", param="agents")
    for actor in actors:
        if (actor.provider or LOCAL) == LOCAL:
            config.resolve(actor.model, "chat")
        elif actor.provider not in config.section(Rooms).providers:
            raise unknown_provider(config, str(actor.provider))


def unknown_provider(config: Config, name: str) -> ProviderInvalidRequest:
    known = ", ".join((LOCAL, *config.section(Rooms).providers))
    message = f"unknown provider {name!r}; rooms.providers in config.yaml has: {known}"
    return ProviderInvalidRequest(message, code="provider_unknown", param="agents")


def bounds_of(config: Config, asked: TurnBounds) -> Bounds:
    """The tighter of the configuration's and the room's bounds."""
    maximum = config.section(Rooms)

    def least(bound: float, other: float | None) -> float:
        return bound if other is None else min(bound, other)

    return Bounds(
        wall_seconds=least(maximum.turn_seconds, asked.wall_seconds),
        model_calls=int(least(maximum.turn_model_calls, asked.model_calls)),
        tool_calls=int(least(maximum.turn_tool_calls, asked.tool_calls)),
        output_tokens=int(least(maximum.turn_output_tokens, asked.output_tokens)),
    )


def _system(task: Task) -> str:
    """The system message of a turn; may be empty."""
    about = [
        task.actor.instructions,
        f"The purpose of this room: {task.data.purpose}" if task.data.purpose else None,
        f"Your skills: {', '.join(task.actor.skills)}" if task.actor.skills else None,
    ]
    return "\n\n".join(part for part in about if part)


class TurnTools:
    """The tools of a turn that may have been cut off before."""

    def __init__(self, toolbox: Toolbox, before: Before) -> None:
        self._toolbox = toolbox
        self._before = before
        self.name = toolbox.name
        self.tools = [Tool(name, tool.description, tool.parameters) for name, tool in toolbox.tools.items()]

    def recorded(self, call: ToolCall) -> tuple[dict[str, Any], bool]:
        """A call's arguments without secrets, for the record; and whether anything was redacted."""
        arguments = dict(call.arguments or {})
        redacted = self._toolbox.recorded(arguments)
        return redacted, redacted != arguments

    def refused(self, called: str, arguments: str) -> dict[str, str]:
        """Replacements for a refused call's arguments and reason, where these may hold secrets; else empty."""
        try:
            written = json.loads(arguments)
        except (ValueError, RecursionError):
            return {}
        shown, redacted = self.recorded(ToolCall("", called, written if isinstance(written, dict) else {}))
        return {"arguments": json.dumps(shown), "reason": "the arguments break the tool's schema"} if redacted else {}

    @cached_property
    def takes(self) -> Callable[[ToolCall], bool]:
        """Whether an earlier turn's call may be sent as one: a tool of that name may have another schema today."""
        return conforming(self.tools)

    def lost(self, call: ToolCall) -> bool:
        """Whether the call began before the turn was cut off and must not run again: it may have had its effect."""
        if call.id in self._before.redacted:
            return True
        tool = self._toolbox.get(call.name)
        return call.id in self._before.started and (tool is None or not tool.idempotent)

    def attempt(self, call: ToolCall) -> int:
        return self._before.started.get(call.id, 0) + 1

    async def run(self, call: ToolCall) -> Mapping[str, Any]:
        if self.lost(call):
            message = "the gateway stopped during this call: it may have taken effect; check before you repeat it"
            return {"error": {"code": "tool_interrupted", "message": message}}
        return await self._toolbox.run(call.name, call.arguments or {})


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
            case ModelFailed(call, error, seconds):
                failed = {"call": call, "code": error.code, "message": error.message}
                return "agent:model_failed", {**failed, "retry_in_seconds": round(seconds, 3)}
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
                    "content": message.text,
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

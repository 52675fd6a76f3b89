"""Turns a case and settings into a request body, and maps tool names back. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gateway.features.evaluation.model_test.answers import ModelAnswer
from gateway.features.evaluation.model_test.cases import Case, Json, digest

Names = Literal["dotted", "underscore"]
Streamed = Literal["off", "on", "both"]


@dataclass(frozen=True)
class Settings:
    """Everything that may change an answer; equal for comparable results."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 1024
    system_prompt: str | None = None
    tool_choice: str = "auto"
    names: Names = "dotted"
    stream: Streamed = "off"
    thinking: Literal["on", "off", "default"] = "default"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    bfcl_compat: bool = False

    def facts(self) -> Json:
        """For results: what may be secret, or is long, as its hash alone."""
        facts = {key: value for key, value in vars(self).items() if key not in ("system_prompt", "extra_body")}
        facts["system_prompt_sha256"] = digest(self.system_prompt) if self.system_prompt is not None else None
        facts["extra_body_sha256"] = digest(self.extra_body) if self.extra_body else None
        return facts

    def ways(self, case: Case) -> Sequence[bool]:
        """Whether the case is asked whole (False), streamed (True), or both."""
        if self.stream == "both" or case.both_ways:
            return (False, True)
        return (self.stream == "on",)


def body(case: Case, messages: Sequence[Json], settings: Settings, model: str, *, stream: bool) -> Json:
    """The request. `messages` carry the case's own tool names; they leave as `settings.names` has them."""
    made: Json = {
        "model": model,
        "messages": _messages(messages, settings),
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_tokens,
        "stream": stream,
        **settings.extra_body,
    }
    if stream:
        made["stream_options"] = {"include_usage": True}
    if case.tools:
        made["tools"] = [_tool(tool, settings) for tool in case.tools]
        made["tool_choice"] = _choice(settings.tool_choice if case.tool_choice is None else case.tool_choice, settings)
    if settings.thinking != "default":
        made["chat_template_kwargs"] = {"enable_thinking": settings.thinking == "on"}
    return made


def forced(case: Case) -> bool:
    return isinstance(case.tool_choice, dict)


def own_names(answer: ModelAnswer, case: Case, settings: Settings) -> ModelAnswer:
    """The answer with the case's tool names. By a table: a name may hold both dots and underscores."""
    if settings.names == "dotted":
        return answer
    table = {_wire(tool["function"]["name"]): tool["function"]["name"] for tool in case.tools}
    return replace(
        answer, calls=tuple(replace(call, name=table.get(call.name, f"{call.name}?")) for call in answer.calls)
    )


def _wire(name: str) -> str:
    return name.replace(".", "_")


def _tool(tool: Json, settings: Settings) -> Json:
    if settings.names == "dotted":
        return tool
    return {**tool, "function": {**tool["function"], "name": _wire(tool["function"]["name"])}}


def _choice(choice: Any, settings: Settings) -> Any:
    if isinstance(choice, dict) and settings.names == "underscore":
        return {**choice, "function": {"name": _wire(choice["function"]["name"])}}
    return choice


def _messages(messages: Sequence[Json], settings: Settings) -> list[Json]:
    sent = [copy.deepcopy(message) for message in messages]
    if settings.names == "underscore":
        for message in sent:
            for call in message.get("tool_calls", ()):
                call["function"]["name"] = _wire(call["function"]["name"])
    if settings.system_prompt is not None:
        if sent and sent[0]["role"] == "system":
            sent[0]["content"] = f"{settings.system_prompt}\n\n{sent[0]['content']}"
        else:
            sent.insert(0, {"role": "system", "content": settings.system_prompt})
    return sent

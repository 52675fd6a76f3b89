"""Renders a model's chat template as transformers does, and cuts out what the model itself writes in a turn."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

Json = dict[str, Any]
Call = tuple[str, Json]

ASKED = "wxUserAsks"
"""The last message before the answer."""

EOS = "<|eos|>"
END_MARKS = (
    *(EOS, "</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|end|>", "<|call|>", "<|return|>"),
    *(
        "<|endoftext|>",
        "<end_of_turn>",
        "<turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
        "<|flush|>",
    ),
    *("<|observation|>", "<|user|>", "<|end_of_msg|>", "<|message_sep|>", "<|end_of_text|>", "<SPECIAL_12>"),
    *("<end_of_utterance>", "<|im_user|>", "<|im_system|>", "<|role_end|>", "<|assistant_end|>", "<|header_end|>"),
    *("<start_function_response>", "<|tool_response>", "<eos>", "[|endofturn|]", "<extra_id_1>", "<sep>"),
    *(
        "<end_of_sentence>",
        "<|tool▁outputs▁begin|>",
        "<｜tool▁outputs▁begin｜>",
        "<|calls|>",
        "<seed:eos>",
        "</assistant>",
        "<｜hy_eos｜>",
    ),
)
"""What ends a turn. An engine knows it from the tokenizer, which a template alone doesn't show."""

_MARK = re.compile(r"<[^<>\n ]+>|<[^<>\n]{1,60}>|\[/?[A-Z_]+\]")
_MARK_SIZE = 80


class NotRendered(Exception):
    """The template refuses the conversation, or fails on it."""


@dataclass(frozen=True, slots=True)
class Turn:
    text: str
    """What the model writes, without the end of its turn."""
    prompt: str


class _Generation(Extension):
    """``{% generation %}``, which training uses, changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_as_it_is"), [], [], body).set_lineno(line)

    def _as_it_is(self, caller: Callable[[], str]) -> str:
        return caller()


def _compiled(source: str) -> jinja2.Template:
    def refuse(message: str) -> None:
        raise NotRendered(message)

    def as_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    environment = SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime(2026, 11, 2).strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise NotRendered(f"its syntax: {error}") from error


@dataclass(slots=True)
class _Form:
    """How a template wants its messages."""

    system: bool = False
    answered: bool = False
    """Calls are followed by their results."""
    empty: str | None = ""
    """The content of a message without text."""
    as_text: bool = False
    """Arguments are JSON text."""
    own_ids: bool = False
    """The id of a call holds its tool's name, as Kimi K2 writes it."""
    reasoning: str = ""
    """The key of reasoning; empty if the template shows none."""
    extra: Json = field(default_factory=dict)


class ChatTemplate:
    """Raises `NotRendered` if the template shows no past calls."""

    def __init__(self, source: str, tools: Sequence[Json]) -> None:
        self._template = _compiled(source)
        self._tools = tools
        self._form = _Form()
        self._lead: str | None = None
        call = ("wxProbe", {"wxKey": "wxValue"})
        self._settle(call)
        self._lead = self._common_lead(call)
        self._settle_reasoning(call)

    @property
    def shows_reasoning(self) -> bool:
        return bool(self._form.reasoning)

    # -- how it wants its messages -------------------------------------------------------------

    def _settle(self, call: Call) -> None:
        found: dict[bool, _Form] = {}
        clean: dict[bool, bool] = {}
        reason = "it drops past calls"
        for system, answered, own_ids in product((False, True), repeat=3):
            for empty, as_text in product(("", None), (False, True)):
                self._form = _Form(system, answered, empty, as_text, own_ids)
                try:
                    text = self.turn([call]).text
                except NotRendered as error:
                    reason = str(error)
                    continue
                if as_text not in found and all(word in text for word in (call[0], "wxKey", "wxValue")):
                    found[as_text] = self._form
                    clean[as_text] = "{'wxKey'" not in text and '\\"wxKey\\"' not in text
            if len(found) == 2 or (found and not answered):
                break
        if not found:
            raise NotRendered(reason)
        self._form = found[min(found, key=lambda as_text: (not clean[as_text], as_text))]

    def _settle_reasoning(self, call: Call) -> None:
        options: list[Json] = [
            {},
            {"enable_thinking": True},
            {"thinking": True},
            {"thinking_mode": "enabled"},
            {"interleaved_thinking": True, "reasoning_effort": "high"},
        ]
        keys = ("reasoning_content", "reasoning", "thinking", "thought")
        for extra, key, content in product(options, keys, (None, "wxText")):
            self._form.extra, self._form.reasoning = extra, key
            try:
                if "wxThought" in self.turn([call], content, "wxThought").text:
                    return
            except NotRendered:
                continue
        self._form.extra, self._form.reasoning = {}, ""

    def _common_lead(self, call: Call) -> str | None:
        """What stands before every answer of the history, whatever the answer is."""
        rests = []
        for answer in (self._messages([call]), self._messages((), "wxText")):
            try:
                rests.append(_after_question(self._render(answer)))
            except NotRendered:
                return None
        first, second = rests
        return first[: _shared(first, second)]

    # -- rendering -----------------------------------------------------------------------------

    def _render(self, messages: list[Json], *, prompt: bool = False) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=self._tools,
                documents=None,
                add_generation_prompt=prompt,
                bos_token="<|bos|>",
                eos_token=EOS,
                pad_token="<|pad|>",
                unk_token="<|unk|>",
                **self._form.extra,
            )
        except NotRendered:
            raise
        except Exception as error:
            raise NotRendered(f"{type(error).__name__}: {error}") from error

    def _question(self) -> list[Json]:
        system = [{"role": "system", "content": "wxSystem"}] if self._form.system else []
        return [*system, {"role": "user", "content": ASKED}]

    def _messages(self, calls: Iterable[Call], content: str | None = None, reasoning: str | None = None) -> list[Json]:
        form = self._form
        answer: Json = {"role": "assistant", "content": form.empty if content is None else content}
        if reasoning is not None:
            answer[form.reasoning] = reasoning
        made, results = [], []
        for index, (name, arguments) in enumerate(calls):
            ident = f"functions.{name}:{index}" if form.own_ids else f"wxid{index:05}"
            given = json.dumps(arguments, ensure_ascii=False) if form.as_text else arguments
            made.append({"id": ident, "type": "function", "function": {"name": name, "arguments": given}})
            results.append({"role": "tool", "name": name, "tool_call_id": ident, "content": "wxResult"})
        if made:
            answer["tool_calls"] = made
        return [*self._question(), answer, *(results if form.answered else ())]

    def turn(self, calls: Sequence[Call], content: str | None = None, reasoning: str | None = None) -> Turn:
        """The turn of a model that answers with this. Raises `NotRendered`."""
        whole = self._render(self._messages(calls, content, reasoning))
        asked = _after_question(self._render(self._question(), prompt=True))
        rest = _after_question(whole)
        start, left = _matched(asked, rest)
        if left and self._lead is not None and rest.startswith(self._lead) and len(self._lead) > start:
            start = len(self._lead)
        text, prompt = rest[start:], whole[: len(whole) - len(rest) + start]
        if left and _goes_on(left, text, reasoning):
            prompt += left
        pinned = [content, reasoning]
        for name, arguments in calls:
            pinned += [name, *arguments, *_written(arguments.values())]
        last = max((text.rfind(pin) + len(pin) for pin in pinned if pin and pin in text), default=0)
        ends = [at for end in END_MARKS if (at := text.find(end, last)) >= 0]
        return Turn(text[: min(ends, default=len(text))], prompt)


def _written(values: Iterable[Any]) -> Iterator[str]:
    """How a template may write the values, or the ends of them."""
    for value in values:
        if isinstance(value, str):
            yield json.dumps(value, ensure_ascii=False)[1:-1]
            yield value.rpartition("\n")[2]
        else:
            yield str(value)


def _after_question(rendered: str) -> str:
    return rendered.rpartition(ASKED)[2]


def _matched(prompt: str, text: str) -> tuple[int, str]:
    """How far the text begins like the prompt, white space aside; and what is left of the prompt."""
    at = i = 0
    while True:
        ahead = i + len(prompt[i:]) - len(prompt[i:].lstrip())
        behind = at + len(text[at:]) - len(text[at:].lstrip())
        if ahead == len(prompt):
            # The white space with which the prompt ends is part of it as far as the text has it.
            return at + _alike(prompt[i:], text[at:]), ""
        if behind == len(text) or prompt[ahead] != text[behind]:
            break
        i, at = ahead + 1, behind + 1
    cut = min(_whole_marks(text, at), max(0, at - (i - _whole_marks(prompt, i))))
    return cut, prompt[i - (at - cut) :].strip()


def _alike(a: str, b: str) -> int:
    size = min(len(a), len(b))
    return next((at for at in range(size) if a[at] != b[at]), size)


def _shared(a: str, b: str) -> int:
    """How far the texts begin alike, without a cut through a mark or a word."""
    at = _alike(a, b)
    return min(_whole_marks(a, at), _whole_marks(b, at))


def _whole_marks(text: str, at: int) -> int:
    """The place at `at` or before that cuts no mark and no word."""
    for mark in _MARK.finditer(text, max(0, at - _MARK_SIZE), at + _MARK_SIZE):
        if mark.start() < at < mark.end():
            return mark.start()
    while 0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum():
        at -= 1
    return at


def _goes_on(left: str, text: str, reasoning: str | None) -> bool:
    """Whether the history leaves out the beginning of the reasoning that the prompt opens."""
    text = text.lstrip()
    if left[0] in "<[" and text.startswith(f"{left[0]}/{left[1:]}"):
        return True
    return reasoning is not None and "<" not in left and text.startswith(reasoning)

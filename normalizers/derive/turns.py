"""How a chat template wants its messages, and what it lets the model write in a turn. Both are found by rendering."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal, Protocol

Json = dict[str, Any]
Call = tuple[str, Json]

ASKED = "wxUserAsks"
"""The last message before the answer."""

EOS = "<|eos|>"
"""What a renderer gives the template as `eos_token`."""
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
    *("<end_of_sentence>", "<|tool▁outputs▁begin|>", "<｜tool▁outputs▁begin｜>", "<|calls|>", "<seed:eos>"),
    *("</assistant>", "<｜hy_eos｜>"),
)
"""What ends a turn. An engine knows it from the tokenizer, which a template alone doesn't show."""

MARK = re.compile(r"<[^<>\n ]+>|<[^<>\n]{1,60}>|\[/?[A-Z_]+\]")
_MARK_SIZE = 80
_PROBE: Call = ("wxProbe", {"wxKey": "wxValue"})


class NotRendered(Exception):
    """The template refuses the conversation, or fails on it."""


class Render(Protocol):
    """Renders a template with these variables, as transformers does. Raises `NotRendered`."""

    def __call__(self, **variables: Any) -> str: ...


@dataclass(frozen=True, slots=True)
class Turn:
    text: str
    """What the model writes, without the end of its turn."""
    prompt: str
    end: str = ""
    """The mark that ends the turn, if it is known."""


@dataclass(slots=True)
class Form:
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


class Turns:
    """The turns of one template. Raises `NotRendered` if it shows no past calls."""

    def __init__(self, render: Render, tools: Sequence[Json]) -> None:
        self._template = render
        self._tools = json.dumps(tools)
        self._asked: dict[str, str] = {}
        self._lead: str | None = None
        self._end = ""
        self.arguments: Literal["either", "object", "text"] = "either"
        """The only form in which it shows arguments as the model wrote them."""
        self.form = self._settle()
        self._lead = self._common_lead()
        self._settle_reasoning()
        self._end = self._common_end()

    @property
    def shows_reasoning(self) -> bool:
        return bool(self.form.reasoning)

    @property
    def end(self) -> str:
        """The mark that ends each turn, if it isn't one of `END_MARKS`; else empty."""
        return self._end

    # -- how it wants its messages -------------------------------------------------------------

    def _settle(self) -> Form:
        found: dict[bool, Form] = {}
        clean: dict[bool, bool] = {}
        reason = "it drops past calls"
        for system, answered, own_ids in product((False, True), repeat=3):
            for empty, as_text in product(("", None), (False, True)):
                self.form = Form(system, answered, empty, as_text, own_ids)
                try:
                    text = self.turn([_PROBE]).text
                except NotRendered as error:
                    reason = str(error)
                    continue
                if as_text not in found and all(word in text for word in (_PROBE[0], "wxKey", "wxValue")):
                    found[as_text] = self.form
                    clean[as_text] = "{'wxKey'" not in text and '\\"wxKey' not in text
            if len(found) == 2 or (found and not answered):
                break
        if not found:
            raise NotRendered(reason)
        good = [as_text for as_text in found if clean[as_text]]
        if len(good) == 1:
            self.arguments = "text" if good[0] else "object"
        return found[min(found, key=lambda as_text: (not clean[as_text], as_text))]

    def _settle_reasoning(self) -> None:
        options: list[Json] = [
            {},
            {"enable_thinking": True},
            {"thinking": True},
            {"thinking_mode": "enabled"},
            {"interleaved_thinking": True, "reasoning_effort": "high"},
        ]
        keys = ("reasoning_content", "reasoning", "thinking", "thought")
        for extra, key, content in product(options, keys, (None, "wxText")):
            self.form.extra, self.form.reasoning = extra, key
            try:
                if "wxThought" in self.turn([_PROBE], content, "wxThought").text:
                    return
            except NotRendered:
                continue
        self.form.extra, self.form.reasoning = {}, ""

    def _common_lead(self) -> str | None:
        """What stands before every answer of the history, whatever the answer is."""
        rests = []
        for answer in (self._messages([_PROBE]), self._messages((), "wxText")):
            try:
                rests.append(_after_question(self._render(answer)))
            except NotRendered:
                return None
        first, second = rests
        return first[: common_start(first, second)]

    def _common_end(self) -> str:
        """The marks that every answer of the history ends with, whatever the answer is."""
        try:
            said, called = self.turn((), "wxText.").text.rstrip(), self.turn([_PROBE]).text.rstrip()
        except NotRendered:
            return ""
        size = common_end(said, called)
        mark = re.search(r"<[^<>\n]+>.*\Z", said[len(said) - size :], re.DOTALL)
        # Behind a word it may be the end of two different marks.
        return mark[0] if mark and not called[: len(called) - len(mark[0])][-1:].isalnum() else ""

    # -- rendering -----------------------------------------------------------------------------

    def _render(self, messages: list[Json], *, prompt: bool = False) -> str:
        tools = json.loads(self._tools)  # a copy: some templates change what they get
        return self._template(messages=messages, tools=tools, add_generation_prompt=prompt, **self.form.extra)

    def _prompt(self) -> str:
        """What follows the question in the prompt of an answer."""
        key = json.dumps((self.form.system, self.form.extra))
        if key not in self._asked:
            self._asked[key] = _after_question(self._render(self._question(), prompt=True))
        return self._asked[key]

    def _question(self) -> list[Json]:
        system = [{"role": "system", "content": "wxSystem"}] if self.form.system else []
        return [*system, {"role": "user", "content": ASKED}]

    def _messages(self, calls: Iterable[Call], content: str | None = None, reasoning: str | None = None) -> list[Json]:
        form = self.form
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

    def conversation(self, answers: Iterable[tuple[Iterable[Call], str | None]]) -> str:
        """All that it renders of several answers in a row, each with its calls and its text. Raises `NotRendered`."""
        start = len(self._question())
        rendered = [self._messages(calls, content)[start:] for calls, content in answers]
        return self._render([*self._question(), *(message for turn in rendered for message in turn)])

    def earlier(self, call: Call, reasoning: str, **variables: Any) -> str:
        """All that it renders of a turn with reasoning and a call, once a user has asked the next. Raises
        `NotRendered`."""
        form = self.form
        self.form = replace(form, answered=True, extra={**form.extra, **variables})
        try:
            messages = self._messages([call], None, reasoning)
            said, asked = {"role": "assistant", "content": "wxDone"}, {"role": "user", "content": "wxNext"}
            return self._render([*messages, said, asked], prompt=True)
        finally:
            self.form = form

    def turn(self, calls: Sequence[Call], content: str | None = None, reasoning: str | None = None) -> Turn:
        """The turn of a model that answers with this. Raises `NotRendered`."""
        whole = self._render(self._messages(calls, content, reasoning))
        rest = _after_question(whole)
        start, left = _matched(self._prompt(), rest)
        if left and self._lead is not None and rest.startswith(self._lead) and len(self._lead) > start:
            start = len(self._lead)
        text, prompt = rest[start:], whole[: len(whole) - len(rest) + start]
        if left and _goes_on(left, text, reasoning):
            prompt += left
        pinned = [content, reasoning]
        for name, arguments in calls:
            pinned += [name, *arguments, *_written(arguments.values())]
        last = max((text.rfind(pin) + len(pin) for pin in pinned if pin and pin in text), default=0)
        marks = (*END_MARKS, self._end) if self._end else END_MARKS
        ends = [(at, -len(end), end) for end in marks if (at := text.find(end, last)) >= 0]
        cut, _, end = min(ends, default=(len(text), 0, ""))
        return Turn(text[:cut], prompt, end)


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
            return at + alike(prompt[i:], text[at:]), ""
        if behind == len(text) or prompt[ahead] != text[behind]:
            break
        i, at = ahead + 1, behind + 1
    cut = min(_whole_marks(text, at), max(0, at - (i - _whole_marks(prompt, i))))
    return cut, prompt[i - (at - cut) :].strip()


def alike(a: str, b: str) -> int:
    size = min(len(a), len(b))
    return next((at for at in range(size) if a[at] != b[at]), size)


def common_start(a: str, b: str) -> int:
    """How far the texts begin alike, without a cut through a mark or a word."""
    at = alike(a, b)
    return min(_whole_marks(a, at), _whole_marks(b, at))


def common_end(a: str, b: str) -> int:
    """How many characters the texts end with alike, without a cut through a mark or a word."""
    size = alike(a[::-1], b[::-1])
    while size and not (_cuts_nothing(a, len(a) - size) and _cuts_nothing(b, len(b) - size)):
        size -= 1
    return size


def _cuts_nothing(text: str, at: int) -> bool:
    return _whole_marks(text, at) == at


def _whole_marks(text: str, at: int) -> int:
    """The place at `at` or before that cuts no mark and no word."""
    for mark in MARK.finditer(text, max(0, at - _MARK_SIZE), at + _MARK_SIZE):
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

"""What an answer that is put aside and resumes has to know of itself: its tokens, its grammar, its chunks. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from secrets import token_hex
from time import time
from typing import Any

from msgspec import Raw

from gateway.backends.llamacpp_guard import MAY_BE_CALLS, TRIGGER_WHOLE
from gateway.wire.chat import ChatRequest, decode, encode

Json = dict[str, Any]

GRAMMAR = frozenset(("grammar", "grammar_lazy", "grammar_triggers"))


def written(ids: Sequence[int], told: int, held: Sequence[int] | None) -> list[int] | None:
    """The ids of the tokens whose text has arrived; None if they can't be determined.

    ids: those that came with the text, which lack the first tokens of characters of several. told: how many tokens the
    engine had written with the last of them; with speculation up to a few more. held: what the engine held behind the
    prompt when it stopped, more or one less; None if unknown.
    """
    if not ids or len(ids) == told:
        return list(ids)
    if held is None:
        return None
    if list(held[: len(ids)]) == list(ids):
        return list(ids)
    if len(held) == told - 1:
        return [*held, ids[-1]]
    return list(held[:told]) if len(held) >= told and held[told - 1] == ids[-1] else None


class Tokens:
    """The ids of a prompt and of its answer so far. asked: the fields of the request besides the prompt."""

    __slots__ = ("_asked", "_before", "_ids", "_known", "_limit", "_prompt", "_texts", "_told")

    def __init__(self, asked: dict[str, Raw], prompt: list[int]) -> None:
        self._asked = asked
        self._prompt = prompt
        self._limit: int | None = decode(asked["n_predict"]) if "n_predict" in asked else None
        self._before: list[int] = []
        """Ids of the answer's tokens from before it was put aside."""
        self._begin()

    def _begin(self) -> None:
        self._ids: list[int] = []
        self._known = self._told = 0
        """How many of the ids came with the last text, and see `written`."""
        self._texts: list[str] = []

    def add(self, text: str, ids: Iterable[int], told: int | None) -> None:
        """told: how many tokens the engine has written for this request; None if it doesn't say."""
        self._ids += ids
        if text:
            self._texts.append(text)
            self._known, self._told = len(self._ids), told or 0

    def recall(self, held: Sequence[int] | None) -> bool:
        """Takes the tokens whose text has arrived for written. held: what the engine held behind `all`. False if they
        can't be determined: then `retokenised` must have them."""
        ids = written(self._ids[: self._known], self._told, held)
        if ids is None:
            return False
        self.retokenised(ids)
        return True

    def retokenised(self, ids: Sequence[int]) -> None:
        """ids: of `text`."""
        self._before += ids
        self._begin()

    @property
    def all(self) -> list[int]:
        return [*self._prompt, *self._before]

    @property
    def text(self) -> str:
        """The text since it was last put aside."""
        return "".join(self._texts)

    @property
    def prompt(self) -> int:
        return len(self._prompt)

    @property
    def before(self) -> int:
        """The answer's tokens from before it was put aside."""
        return len(self._before)

    @property
    def so_far(self) -> int:
        """The answer's tokens."""
        return len(self._before) + self._told

    @property
    def at_limit(self) -> bool:
        return self._limit is not None and self.before >= self._limit

    def request(self, slot: int | None, *, fresh: bool) -> dict[str, Raw]:
        """The fields of `/completion` for the rest of the answer. fresh: nothing of the slot may be used."""
        asked = {**self._asked, "id_slot": Raw(b"%d" % slot) if slot is not None else Raw(b"-1")}
        if fresh:
            asked["cache_prompt"] = Raw(b"false")
        asked["prompt"] = Raw(encode(self.all))
        if self._limit is not None:
            asked["n_predict"] = Raw(b"%d" % max(0, self._limit - self.before))
        return asked


class GrammarWatch:
    """Whether a grammar may be active in the engine. marks: texts at which it begins. unmarked: it also begins with an
    answer that may begin with a call."""

    __slots__ = ("_begin", "_marks", "_tail", "_unmarked", "active")

    def __init__(self, marks: Iterable[str], *, unmarked: bool) -> None:
        self.active = False
        self._marks = tuple(marks)
        self._unmarked = unmarked
        self._begin = ""
        """The answer so far, as long as it is white space alone."""
        self._tail = ""
        """The last text, in which a mark may have begun."""

    def read(self, text: str) -> None:
        if self._unmarked and not self.active:
            self._begin += text
            self.active = MAY_BE_CALLS.fullmatch(self._begin) is not None
            self._unmarked = not self._begin.strip()
        if self._marks and not self.active:
            self._tail += text
            self.active = any(mark in self._tail for mark in self._marks)
            self._tail = self._tail[-max(map(len, self._marks)) :]

    def triggers(self, asked: Mapping[str, Raw]) -> dict[str, Raw]:
        """The fields for the rest of the answer, which the engine would otherwise take for the answer's start."""
        if self._unmarked or "grammar_triggers" not in asked:
            return dict(asked)
        triggers = [each for each in decode(asked["grammar_triggers"]) if each["type"] != TRIGGER_WHOLE]
        if triggers:
            return {**asked, "grammar_triggers": Raw(encode(triggers))}
        return {name: value for name, value in asked.items() if name not in GRAMMAR}


class Chunks:
    """The chat chunks of one answer, whatever number of requests its tokens came from. model: the name to tell."""

    __slots__ = ("_begun", "_cached", "_id", "_model", "_names_stop", "_usage")

    def __init__(self, request: ChatRequest, model: str) -> None:
        self._usage = request.include_usage or not request.stream
        self._names_stop = request.names_stop
        self._model = model
        self._id = f"chatcmpl-{token_hex(16)}"
        self._begun = False
        self._cached: int | None = None

    def cached(self, tokens: int) -> None:
        """Tokens of the prompt that the engine had. The first request counts."""
        if self._cached is None:
            self._cached = tokens

    def text(self, text: str) -> Iterator[Json]:
        if text or not self._begun:
            yield self._chunk({"content": text})

    def last(self, tokens: Tokens, body: Mapping[str, Any]) -> Iterator[Json]:
        """body: the engine's last payload."""
        end = self._chunk({}, "length" if body.get("stop_type") == "limit" else "stop")
        if self._names_stop and (word := body.get("stopping_word")):
            end["choices"][0]["stop_reason"] = word
        yield end
        if self._usage:
            completion = tokens.before + body["tokens_predicted"]
            usage: Json = {
                "prompt_tokens": tokens.prompt,
                "completion_tokens": completion,
                "total_tokens": tokens.prompt + completion,
                "prompt_tokens_details": {"cached_tokens": self._cached or 0},
            }
            yield {**self._head(), "choices": [], "usage": usage}

    def _chunk(self, delta: Json, reason: str | None = None) -> Json:
        if not self._begun:
            self._begun = True
            delta = {"role": "assistant", **delta}
        return {**self._head(), "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    def _head(self) -> Json:
        return {"id": self._id, "object": "chat.completion.chunk", "created": int(time()), "model": self._model}

"""Brings a conversation into the forms that strict chat templates ask for, once a template has refused it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from gateway.request.repair_history import ID_LENGTH, result_in_words
from gateway.wire.chat import encode
from gateway.wire.conversation import SYSTEM, joined, one_system

Message = dict[str, Any]
Rule = Callable[[list[Message], Counter[str]], list[Message]]

BEGINNING = "(The conversation begins here.)"
"""Stands for a user's message before a model's first one, or if there is none at all."""
NO_RESULT = "(This call has no result.)"
"""Stands for the result of a call that the client didn't run."""
READ = "OK."
"""The model's answer between the result of its call and a user's next message."""


def conforming(messages: list[Message]) -> Iterator[tuple[list[Message], Mapping[str, int]]]:
    """Forms of the conversation for stricter and stricter templates, each with the number of its changes by kind.

    All say what the conversation says, in its order. Leaves out forms that don't differ from the one before. The kinds
    are those of `gateway.answer.report.ADAPTED`, and `ids`.
    """
    counts: Counter[str] = Counter()
    for rule in _RULES:
        before, messages = messages, rule(messages, counts)
        if messages != before:
            yield messages, {kind: count for kind, count in counts.items() if count}


def _system_first(messages: list[Message], counts: Counter[str]) -> list[Message]:
    """Qwen's templates, and others."""
    found = one_system(messages)
    if found != messages:
        moved = sum(message.get("role") in SYSTEM for message in messages)
        counts["system_messages"] += max(1, moved - (messages[0].get("role") == "system"))
    return found


def _in_turns(messages: list[Message], counts: Counter[str]) -> list[Message]:
    """Mistral's and Gemma's templates: the user and the model take turns, and a call's result is followed by the
    model's words."""
    answered = _results_follow(messages, counts)
    turns = joined(answered)
    if len(turns) < len(answered):
        counts["joined_messages"] += len(answered) - len(turns)
    found: list[Message] = []
    for message in turns:
        role, before = message.get("role"), found[-1].get("role") if found else None
        if role not in (*SYSTEM, "user") and before in (*SYSTEM, None):
            found.append({"role": "user", "content": BEGINNING})
        elif role == "user" and before == "tool":
            found.append({"role": "assistant", "content": READ})
        found.append(message)
    if found[-1].get("role") in SYSTEM:
        found.append({"role": "user", "content": BEGINNING})
    if len(found) > len(turns):
        counts["added_messages"] += len(found) - len(turns)
    return found


def _results_follow(messages: list[Message], counts: Counter[str]) -> list[Message]:
    """Each call's result directly behind it, and one that says so where it has none."""
    places: dict[object, deque[int]] = {}
    for at, message in enumerate(messages):
        if message.get("role") == "tool":
            places.setdefault(str(message.get("tool_call_id")), deque()).append(at)
    taken: set[int] = set()
    found: list[Message] = []
    for at, message in enumerate(messages):
        if at in taken:
            continue
        found.append(message)
        expected = at + 1
        for id in (str(call.get("id")) for call in _calls(message)):
            own = places.get(id, deque())
            while own and own[0] < at:
                own.popleft()
            if own:
                taken.add(place := own.popleft())
                found.append(messages[place])
                if messages[expected].get("role") != "tool":
                    counts["moved_results"] += 1
                expected += 1
            else:
                found.append({"role": "tool", "tool_call_id": id, "content": NO_RESULT})
                counts["added_messages"] += 1
    return found


def _short_ids(messages: list[Message], counts: Counter[str]) -> list[Message]:
    """Mistral's templates take ids of nine letters and digits alone; others ask results for their tool's name."""
    names: dict[str, str] = {}
    found: list[Message] = []
    for message in messages:
        if calls := _calls(message):
            names |= {str(call.get("id")): str(call["function"].get("name")) for call in calls}
            made = [{**call, "id": _short(str(call.get("id")))} for call in calls]
            counts["ids"] += sum(new["id"] != old.get("id") for new, old in zip(made, calls, strict=True))
            found.append({**message, "tool_calls": made})
        elif message.get("role") == "tool":
            id = str(message.get("tool_call_id"))
            found.append({**message, "tool_call_id": _short(id), "name": message.get("name") or names.get(id, "tool")})
        else:
            found.append(message)
    return found


def _short(id: str) -> str:
    if len(id) == ID_LENGTH and id.isascii() and id.isalnum():
        return id
    return sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:ID_LENGTH]


def _single_calls(messages: list[Message], counts: Counter[str]) -> list[Message]:
    """Llama's templates: one call a message. Its result follows, since `_in_turns` came before."""
    found: list[Message] = []
    results: deque[Message] = deque()
    for at, message in enumerate(messages):
        calls = _calls(message)
        if len(calls) > 1:
            results.extend(messages[at + 1 : at + 1 + len(calls)])
            counts["split_messages"] += 1
            rest = {name: value for name, value in message.items() if name != "reasoning_content"}
            for place, call in enumerate(calls):
                found.append({**(message if place == 0 else {**rest, "content": None}), "tool_calls": [call]})
                found += [results[place]] if place < len(results) else []
        elif results and message is results[0]:
            results.popleft()
        else:
            found.append(message)
    return found


def _calls_in_words(messages: list[Message], counts: Counter[str]) -> list[Message]:
    """Templates without tools: Gemma's, and older ones of Cohere."""
    names: dict[str, str] = {}
    found: list[Message] = []
    for message in messages:
        if calls := _calls(message):
            names |= {str(call.get("id")): str(call["function"].get("name")) for call in calls}
            said = [{"role": "assistant", "content": f"Call of {_said(call['function'])}"} for call in calls]
            found += joined([{name: value for name, value in message.items() if name != "tool_calls"}, *said])
        elif message.get("role") == "tool":
            name = message.get("name") or names.get(str(message.get("tool_call_id")), "a tool")
            found.append(result_in_words(message, str(name)))
        else:
            found.append(message)
            continue
        counts["calls_in_words"] += len(calls) or 1
    return joined(found)


def _said(function: Message) -> str:
    arguments = function.get("arguments")
    return f"{function.get('name')}: {arguments if isinstance(arguments, str) else encode(arguments).decode()}"


def _no_system(messages: list[Message], counts: Counter[str]) -> list[Message]:
    """Templates without a place for system texts, as older ones of Gemma: the first user reads them."""
    if messages[0].get("role") != "system":
        return messages
    counts["system_messages"] += 1
    return joined([{**messages[0], "role": "user"}, *messages[1:]])


def _calls(message: Message) -> list[dict[str, Any]]:
    """Its calls, if they have the form of calls; anything else is for the engine to explain."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not all(
        isinstance(c, dict) and isinstance(c.get("function"), dict) for c in calls
    ):
        return []
    return calls


_RULES: tuple[Rule, ...] = (_system_first, _in_turns, _short_ids, _single_calls, _calls_in_words, _no_system)
"""The commonest first. Each works on what the ones before it made."""

"""`ctxgate room`"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from gateway.cli.client import address, base_url, headers, refusal, transport
from gateway.cli.options import Group, Text, config_option, configuration
from gateway.cli.running import located
from gateway.cli.text import say
from gateway.errors import CATEGORIES, LASTING_STATUS, Category, ProviderInvalidRequest, ProviderUnavailable
from gateway.wire import sse

if TYPE_CHECKING:
    import httpx

EXAMPLES = """\
examples:
  ctxgate room new --name notes --access read
  ctxgate room say notes 'What is in your folder?'      waits for the answer and prints it
  ctxgate room watch notes                              prints events until the room sleeps or ends
  ctxgate room history notes --json
  ctxgate room release notes
"""

ANSWER_SECONDS = 600
"""Bound on silence. The gateway sends a keep-alive every few seconds."""

PAGE = 1000
"""Rooms in an answer."""

LEFT = ("releasing", "released", "failed")
FAILED = 1

room_argument = click.argument("room", metavar="ROOM", help="Id or name of the room.")


@click.group(cls=Group, epilog=EXAMPLES)
@config_option
def room(config: Path | None) -> None:
    """Uses the rooms of a running gateway: long-running conversations with a model that can use tools.

    ROOM is an id, or the name that `new --name` gave to a room that is neither released nor failed.
    """


@room.command("new")
@config_option
@click.option("--name", type=Text(), help="Name by which other commands find the room.")
@click.option("--purpose", type=Text(), help="What the room is for; the model sees it.")
@click.option("--model", help="A model of config.yaml (default: the active one).")
@click.option("--instructions", type=Text(), help="The model's system message.")
@click.option("--access", type=click.Choice(("read", "edit", "full")), help="Which tools it has (default: none).")
def new(config: Path | None, name: str | None, purpose: str | None, access: str | None, **agent: str | None) -> None:
    """Rents a room and prints its id."""
    actor = {"agent_id": f"{name}-agent" if name else "assistant-1", "role": "assistant"}
    body: dict[str, Any] = {"agents": [actor | {key: value for key, value in agent.items() if value is not None}]}
    if name:
        body["metadata"] = {"name": name}
    if purpose:
        body["purpose"] = purpose
    if access:
        body["tool_policy"] = {"access": access}
    with _api(config) as api:
        say(api.call("POST", "/llm/room", body)["id"])


@room.command("say")
@config_option
@click.option("--no-wait", is_flag=True, help="Print the message's id at once.")
@room_argument
@click.argument("text", type=Text(), metavar="TEXT", help="The message.")
def say_and_wait(config: Path | None, no_wait: bool, room: str, text: str) -> int:
    """Sends a message, waits for the answer and prints it."""
    with _api(config) as api:
        room_id = api.id_of(room)
        body = {"kind": "task", "content": text, "metadata": {"source": "ctxgate"}}
        message = api.call("POST", f"/llm/room/{quote(room_id)}/messages", body)
        if no_wait:
            say(message["id"])
            return 0
        for event in api.events(room_id, 0):
            if event["message_id"] == message["id"] and (code := _print_progress(event)) is not None:
                return code
    return FAILED


@room.command("watch")
@config_option
@click.option("--after", type=int, default=0, metavar="N", help="Start after event number N.")
@click.option("--json", "as_json", is_flag=True, help="Print one event on each line.")
@room_argument
def watch(config: Path | None, after: int, as_json: bool, room: str) -> None:
    """Prints events until the room sleeps or ends."""
    with _api(config) as api:
        for event in api.events(api.id_of(room), after):
            say(json.dumps(event) if as_json else _line(event), flush=True)


@room.command("history")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the room, its messages and its events.")
@room_argument
def history(config: Path | None, as_json: bool, room: str) -> None:
    """Prints the messages or, with --json, everything."""
    with _api(config) as api:
        found = api.history(api.id_of(room))
    if as_json:
        say(json.dumps(found, indent=2))
        return
    for message in found["messages"]:
        content = message["content"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        author = message["author_kind"] if message["kind"] == "task" else message["actor_key"]
        say(f"{author}: {text}")


@room.command("release")
@config_option
@click.option("--immediate", is_flag=True, help="Don't let a running turn finish.")
@room_argument
def release(config: Path | None, immediate: bool, room: str) -> None:
    """Ends a room for good."""
    with _api(config) as api:
        mode = "immediate" if immediate else "graceful"
        say(api.call("POST", f"/llm/room/{api.id_of(room)}/release", {"mode": mode})["status"])


@contextlib.contextmanager
def _api(config: Path | None) -> Iterator[API]:
    import httpx

    loaded = configuration(config)
    server = located(loaded.server, loaded.source)
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=5)
    with httpx.Client(
        base_url=base_url(server),
        transport=transport(server),
        headers=headers(server),
        timeout=timeout,
        trust_env=False,
    ) as http:
        yield API(http, address(server))


class API:
    """The rooms API, without the envelope of its answers."""

    def __init__(self, http: httpx.Client, where: str) -> None:
        self._http = http
        self._where = where

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Raises a GatewayError with the gateway's message, ProviderUnavailable if no gateway answers."""
        import httpx

        try:
            return _data(self._http.request(method, path, json=body))
        except httpx.HTTPError as error:
            raise _unreachable(self._where, error) from error

    def events(self, room: str, after: int) -> Iterator[dict[str, Any]]:
        """Follows a room's events after number `after`. Raises as `call` does."""
        import httpx

        path = f"/llm/room/{room}/events?follow=true&after={after}"
        try:
            with self._http.stream("GET", path) as response:
                if response.is_error:
                    response.read()
                    _data(response)
                yield from map(json.loads, sse.read(response.iter_bytes()))
        except (httpx.HTTPError, sse.EventTooLarge) as error:
            raise _unreachable(self._where, error) from error

    def history(self, room: str) -> dict[str, Any]:
        """All of a room's past. Raises as `call` does."""
        found: dict[str, Any] = {"events": [], "messages": [], "more": True}
        while found["more"]:
            events, messages = (found[name][-1]["seq"] if found[name] else 0 for name in ("events", "messages"))
            after = f"after_event={events}&after_message={messages}"
            page = self.call("GET", f"/llm/room/{room}/history?limit=10000&{after}")
            found = {**page, **{name: found[name] + page[name] for name in ("messages", "events")}}
        return found

    def id_of(self, room: str) -> str:
        """The room's id. Raises ProviderInvalidRequest unless `room` is an id or the name of exactly one room."""
        if len(room) == 36 and room.count("-") == 4:
            return room
        named: list[dict[str, Any]] = []
        offset = 0
        while rooms := self.call("GET", f"/llm/room?status=open&limit={PAGE}&offset={offset}"):
            named += [found for found in rooms if found["metadata"].get("name") == room and found["status"] not in LEFT]
            offset += len(rooms)
        if len(named) != 1:
            raise ProviderInvalidRequest(f"{len(named) or 'no'} rooms are named {room!r}: use the id")
        return str(named[0]["id"])


def _data(response: httpx.Response) -> Any:
    try:
        envelope = response.json()
        if response.is_success:
            return envelope["data"]
        message, code = str(envelope["message"]), str(envelope["code"])
    except (ValueError, KeyError, TypeError):
        raise ProviderUnavailable(f"{response.url.copy_with(query=None)} is not a gateway with rooms") from None
    raise refusal({"message": message, "code": code, "category": _category(response.status_code, code)}, message)


def _category(status: int, code: str) -> Category:
    """Of an error whose envelope doesn't say it."""
    for category, error in CATEGORIES.items():
        if error.default_code == code:
            return category
    if status in (401, 403):
        return "provider_authentication"
    if status == 429:
        return "provider_rate_limit"
    return "provider_unavailable" if status >= 500 or status == LASTING_STATUS else "provider_invalid_request"


def _unreachable(where: str, error: Exception) -> ProviderUnavailable:
    reason = str(error) or type(error).__name__
    return ProviderUnavailable(f"no gateway answers at {where}: {reason}; start one with `ctxgate serve`")


def _print_progress(event: dict[str, Any]) -> int | None:
    """Prints an event of a message's turn. Returns the exit code if the event ends it."""
    match event["event_type"]:
        case "agent:output":
            say(event["payload"]["text"])
        case "tool:call":
            say(f"ctxgate: {_line(event)}", file=sys.stderr)
        case "error":
            say(f"ctxgate: {event['payload']['message']}", file=sys.stderr)
        case "message:cancelled":
            say("ctxgate: the room was released before", file=sys.stderr)
            return FAILED
        case "agent:turn_end":
            status = event["payload"]["status"]
            if status == "done":
                return 0
            if status != "failed":  # the error event that follows explains a failure
                say(f"ctxgate: the turn was {status}", file=sys.stderr)
                return FAILED
    return None


def _line(event: dict[str, Any]) -> str:
    """An event for people: number, type and a summary of its payload."""
    payload = event["payload"]
    match event["event_type"]:
        case "agent:output" | "agent:update":
            text = payload["text"]
        case "tool:call":
            text = f"{payload['name']} {json.dumps(payload['arguments'], ensure_ascii=False)}"
        case "tool:result":
            text = f"{payload['name']} {json.dumps(payload['result'], ensure_ascii=False)}"
        case "error":
            text = payload["message"]
        case _:
            text = " ".join(f"{name}={value}" for name, value in payload.items() if isinstance(value, str | int))
    return f"{event['seq']} {event['event_type']} {text}".rstrip()

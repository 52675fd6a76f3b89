"""`ctxgate room`"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gateway.cli.common import add_actions, base_url, configuration, headers, transport
from gateway.errors import ProviderInvalidRequest, ProviderUnavailable

if TYPE_CHECKING:
    import httpx

DESCRIPTION = """\
Rooms of a running gateway: places in which a model works on messages, with tools, within bounds.
ROOM is an id, or the name that `new --name` gave to a room that is neither released nor failed."""
EXAMPLES = """\
examples:
  ctxgate room new --name notes --access read
  ctxgate room say notes 'What is in your folder?'      waits for the answer and prints it
  ctxgate room watch notes                              what happens in it, until it sleeps or ends
  ctxgate room history notes --json
  ctxgate room release notes
"""

ANSWER_SECONDS = 600
"""Without a sign of life from the gateway: it sends one every few seconds."""

ROOM = "its id or name"
LEFT = ("releasing", "released", "failed")
FAILED = 1


def configure(parser: argparse.ArgumentParser) -> None:
    actions = add_actions(parser)
    new = actions.add_parser("new", help="rent a room; prints its id")
    new.add_argument("--name", help="to address it by")
    new.add_argument("--purpose", help="what it is for; the model is told")
    new.add_argument("--model", help="a model of config.yaml (default: the active one)")
    new.add_argument("--instructions", help="the model's system message")
    new.add_argument("--access", choices=("read", "edit", "full"), help="which tools it has (default: none)")
    say = actions.add_parser("say", help="send a message and wait for the answer")
    say.add_argument("room", metavar="ROOM", help=ROOM)
    say.add_argument("text", metavar="TEXT", help="the message")
    say.add_argument("--no-wait", action="store_true", help="print the message's id at once")
    watch = actions.add_parser("watch", help="print what happens, until the room sleeps or ends")
    watch.add_argument("room", metavar="ROOM", help=ROOM)
    watch.add_argument("--after", type=int, default=0, metavar="N", help="begin behind event number N")
    watch.add_argument("--json", action="store_true", help="one event each line")
    history = actions.add_parser("history", help="print what was said, or with --json everything")
    history.add_argument("room", metavar="ROOM", help=ROOM)
    history.add_argument("--json", action="store_true", help="room, messages and events")
    release = actions.add_parser("release", help="end a room for good")
    release.add_argument("room", metavar="ROOM", help=ROOM)
    release.add_argument("--immediate", action="store_true", help="don't let the turn that runs come to its end")


def run(args: argparse.Namespace) -> int:
    import httpx

    server = configuration(args).server
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=5)
    settings: Any = {"transport": transport(server), "headers": headers(server), "timeout": timeout}
    with httpx.Client(base_url=base_url(server), trust_env=False, **settings) as http:
        api = API(http)
        match args.action:
            case "new":
                print(_new(api, args)["id"])
            case "say":
                return _say(api, args)
            case "watch":
                for event in api.events(api.id_of(args.room), args.after):
                    print(json.dumps(event) if args.json else _line(event), flush=True)
            case "history":
                _history(api, args)
            case "release":
                mode = "immediate" if args.immediate else "graceful"
                room = api.call("POST", f"/llm/room/{api.id_of(args.room)}/release", {"mode": mode})
                print(room["status"])
    return 0


class API:
    """The gateway's answers without their envelope."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Raises ProviderInvalidRequest with what the gateway said, ProviderUnavailable where nobody answers."""
        import httpx

        try:
            return _data(self._http.request(method, path, json=body))
        except httpx.HTTPError as error:
            raise _unreachable(self._http, error) from error

    def events(self, room: str, after: int) -> Iterator[dict[str, Any]]:
        """Raises as `call` does."""
        import httpx

        path = f"/llm/room/{room}/events?follow=true&after={after}"
        try:
            with self._http.stream("GET", path) as response:
                if response.is_error:
                    response.read()
                    _data(response)
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            raise _unreachable(self._http, error) from error

    def id_of(self, room: str) -> str:
        """Raises ProviderInvalidRequest unless it is an id, or the name of exactly one room."""
        if len(room) == 36 and room.count("-") == 4:
            return room
        rooms = self.call("GET", "/llm/room?limit=1000")
        named = [found for found in rooms if found["metadata"].get("name") == room and found["status"] not in LEFT]
        if len(named) != 1:
            raise ProviderInvalidRequest(f"{len(named) or 'no'} rooms are named {room!r}: say which by its id")
        return str(named[0]["id"])


def _data(response: httpx.Response) -> Any:
    try:
        envelope = response.json()
        if response.is_success:
            return envelope["data"]
        message, code = str(envelope["message"]), str(envelope["code"])
    except (ValueError, KeyError, TypeError):
        raise ProviderUnavailable(f"{response.url.copy_with(query=None)} is no gateway with rooms") from None
    raise ProviderInvalidRequest(message, code=code)


def _unreachable(http: httpx.Client, error: Exception) -> ProviderUnavailable:
    reason = str(error) or type(error).__name__
    return ProviderUnavailable(f"no gateway answers at {http.base_url}: {reason}; start one with `ctxgate serve`")


def _new(api: API, args: argparse.Namespace) -> dict[str, Any]:
    actor = {"agent_id": f"{args.name}-agent" if args.name else "assistant-1", "role": "assistant"}
    given = {"model": args.model, "instructions": args.instructions}
    body: dict[str, Any] = {"agents": [actor | {name: value for name, value in given.items() if value is not None}]}
    if args.name:
        body["metadata"] = {"name": args.name}
    if args.purpose:
        body["purpose"] = args.purpose
    if args.access:
        body["tool_policy"] = {"access": args.access}
    room: dict[str, Any] = api.call("POST", "/llm/room", body)
    return room


def _say(api: API, args: argparse.Namespace) -> int:
    room = api.id_of(args.room)
    body = {"kind": "task", "content": args.text, "metadata": {"source": "ctxgate"}}
    message = api.call("POST", f"/llm/room/{quote(room)}/messages", body)
    if args.no_wait:
        print(message["id"])
        return 0
    for event in api.events(room, 0):
        if event["message_id"] != message["id"]:
            continue
        match event["event_type"]:
            case "agent:output":
                print(event["payload"]["text"])
            case "tool:call":
                print(f"ctxgate: {_line(event)}", file=sys.stderr)
            case "error":
                print(f"ctxgate: {event['payload']['message']}", file=sys.stderr)
            case "message:cancelled":
                print("ctxgate: the room was released before", file=sys.stderr)
                return FAILED
            case "agent:turn_end":
                status = event["payload"]["status"]
                if status == "done":
                    return 0
                if status != "failed":  # what has failed is told by the event behind this one
                    print(f"ctxgate: the turn was {status}", file=sys.stderr)
                    return FAILED
    return FAILED


def _history(api: API, args: argparse.Namespace) -> None:
    room = api.id_of(args.room)
    history = api.call("GET", f"/llm/room/{room}/history?limit=10000")
    if args.json:
        print(json.dumps(history, indent=2))
        return
    for message in history["messages"]:
        content = message["content"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        author = message["author_kind"] if message["kind"] == "task" else message["actor_key"]
        print(f"{author}: {text}")


def _line(event: dict[str, Any]) -> str:
    """An event for people: its number, its type and what tells it from others of its type."""
    payload = event["payload"]
    match event["event_type"]:
        case "agent:output" | "agent:update":
            told = payload["text"]
        case "tool:call":
            told = f"{payload['name']} {json.dumps(payload['arguments'], ensure_ascii=False)}"
        case "tool:result":
            told = f"{payload['name']} {json.dumps(payload['result'], ensure_ascii=False)}"
        case "error":
            told = payload["message"]
        case _:
            told = " ".join(f"{name}={value}" for name, value in payload.items() if isinstance(value, str | int))
    return f"{event['seq']} {event['event_type']} {told}".rstrip()

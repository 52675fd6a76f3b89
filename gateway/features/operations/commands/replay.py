"""`ctxgate replay`"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from gateway.cli.client import RunningGateway
from gateway.cli.options import Command, config_option, json_option, url_option
from gateway.cli.text import say
from gateway.errors import ProviderInvalidRequest
from gateway.wire.text import printable_json

EXAMPLES = """\
examples:
  ctxgate replay                           list the remembered requests
  ctxgate replay 12 --as hermes            by number
  ctxgate replay chatcmpl-56Cxh --as auto  by the id that the client received
"""

UNREAD = "unread_call"
"""The log's warning of an answer that looks like a call which nobody read."""
UNREAD_CHARS = 200
REPEATED = ("content", "reasoning_content")


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@url_option
@click.option("--as", "format", metavar="FORMAT", help="A format of `ctxgate formats`.")
@json_option
@click.argument("id", required=False, metavar="[ID]", help="The request's number, or its completion's id.")
def replay(config: Path | None, url: str | None, format: str | None, as_json: bool, id: str | None) -> None:
    """Parses a model's recorded answer as another tool-call format, and shows the result beside the original.

    The gateway records answers while config.yaml has log: {bodies: true}. Without ID, lists the remembered requests.
    """
    with RunningGateway(config, url) as gateway:
        if id is None:
            requests = gateway.ask("GET", "/-/requests")["requests"]
            if as_json:
                say(json.dumps(requests, indent=2))
            else:
                listed(requests)
            return
        found = gateway.ask("GET", f"/-/requests/{quote(id, safe='')}")
    shown = _compared(found, format)
    say(printable_json(json.dumps(shown, indent=2, ensure_ascii=False)) if as_json else "\n".join(_page(shown)))


def _compared(found: dict[str, Any], format: str | None) -> dict[str, Any]:
    """The recorded answer as the engine wrote it, as the client got it and, if `format` is given, as it would read.

    Raises ProviderInvalidRequest if there is no answer, it was not recorded, or the format is unknown.
    """
    recording, stream = found["recording"], found["request"]["stream"]
    if recording is None:
        raise ProviderInvalidRequest(
            f"request {found['request']['id']} was not recorded; add log: {{bodies: true}} to config.yaml and ask again"
        )
    if not recording["raw"]:
        why = (found["request"]["error"] or {"message": "its client left"})["message"]
        raise ProviderInvalidRequest(f"no model answered request {found['request']['id']}: {why}")
    shown = {
        "request": found["request"],
        "cut": recording["cut"],
        "raw": _message(recording["raw"], stream),
        "recorded": {"format": recording["tool_call_format"], **_message(recording["clean"], stream)},
    }
    if format is not None:
        shown["replayed"] = {"format": format, **_message(_replayed(recording, format, stream), stream)}
    return shown


def _replayed(recording: dict[str, Any], format: str, stream: bool) -> list[str]:
    """The payloads of a stream, or the one body, that the client would have received in this format.

    Raises ProviderInvalidRequest for an unknown format.
    """
    from gateway.features.operations.replay import replayed
    from gateway.wire.chat import encode

    raw = [payload.encode() for payload in recording["raw"]]
    clean = replayed(encode(recording["request"]), raw, format, stream, recording["reasoning_open"])
    return [payload.decode() for payload in clean]


def _message(payloads: list[str], stream: bool) -> dict[str, Any]:
    """The message of the first choice, and the payloads that are no part of a chat's answer."""
    message: dict[str, Any] = {}
    for payload in payloads:
        try:
            for choice in json.loads(payload).get("choices") or []:
                if choice.get("index", 0):
                    continue
                _add(message, choice.get("delta" if stream else "message") or {})
                if choice.get("finish_reason"):
                    message["finish_reason"] = choice["finish_reason"]
        except (ValueError, TypeError, AttributeError, RecursionError):
            message.setdefault("unread", []).append(payload)
    return message


def _add(message: dict[str, Any], part: dict[str, Any]) -> None:
    for key in REPEATED:
        if part.get(key):
            message[key] = message.get(key, "") + part[key]
    for at, call in enumerate(part.get("tool_calls") or []):
        calls = message.setdefault("tool_calls", {})
        function = call.get("function") or {}
        known = calls.setdefault(str(call.get("index", at)), {"name": "", "arguments": ""})
        known["name"] += function.get("name") or ""
        known["arguments"] += function.get("arguments") or ""


def listed(requests: list[dict[str, Any]]) -> None:
    """Prints them as a table, the newest first."""
    if not requests:
        say("no requests yet, or log.requests is 0")
        return
    from gateway.cli.table import show, table

    rows = [
        (
            str(entry["id"]),
            time.strftime("%H:%M:%S", time.localtime(entry["at"])),
            *(entry["model"], entry["api"], _outcome(entry)),
            f"{entry['seconds']:.2f}",
            f"{entry['prompt_tokens']} + {entry['completion_tokens']}",
            "yes" if entry["recorded"] else "-",
        )
        for entry in requests
    ]
    show(table(("ID", "TIME", "MODEL", "API", "OUTCOME", "SECONDS", "TOKENS", "RECORDED"), rows))


def _outcome(entry: dict[str, Any]) -> str:
    """As the page's Live says it: an answer whose call nobody read isn't fine."""
    return "call in text" if entry["outcome"] == "ok" and UNREAD in entry["warnings"] else str(entry["outcome"])


def _page(shown: dict[str, Any]) -> list[str]:
    request = shown["request"]
    lines = [f"request {request['id']}: {request['model']}, {_outcome(request)}"]
    if shown["cut"]:
        lines.append("(too long: the end was not recorded)")
    lines += ["", "the model wrote:", *_indented(shown["raw"])]
    lines += ["", f"the client got, read as {shown['recorded']['format']}:", *_indented(shown["recorded"])]
    if "replayed" in shown:
        lines += ["", f"read as {shown['replayed']['format']}:", *_indented(shown["replayed"])]
    return lines


def _indented(message: dict[str, Any]) -> list[str]:
    lines = [f"  reasoning: {line}" for line in message.get("reasoning_content", "").splitlines()]
    lines += [f"  {line}" for line in message.get("content", "").splitlines()]
    lines += [f"  call {call['name']} {call['arguments']}" for call in message.get("tool_calls", {}).values()]
    lines += [f"  no chat's answer: {payload[:UNREAD_CHARS]}" for payload in message.get("unread", ())]
    return [*lines, f"  finish_reason: {message.get('finish_reason')}"]

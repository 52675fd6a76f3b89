"""`ctxgate replay`"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from gateway.cli.running import Running, add_url
from gateway.errors import GatewayError, ProviderInvalidRequest

DESCRIPTION = """\
Reads a recorded answer of a model once more, as another tool-call format, and shows what would come out of it beside
what did. Answers are recorded while config.yaml says log: {bodies: true}; without ID those that are remembered are
listed.
"""
EXAMPLES = """\
examples:
  ctxgate replay                           what is remembered
  ctxgate replay 12 --as hermes            by its number
  ctxgate replay chatcmpl-56Cxh --as auto  by the id that the client saw
"""

REPEATED = ("content", "reasoning_content")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", metavar="ID", help="the answer's number or its completion's id")
    parser.add_argument("--as", dest="format", metavar="FORMAT", help="a format of `ctxgate formats`")
    parser.add_argument("--json", action="store_true", help="for programs")
    add_url(parser)


def run(args: argparse.Namespace) -> int:
    with Running(args) as running:
        if args.id is None:
            requests = running.ask("GET", "/-/requests")["requests"]
            print(json.dumps(requests, indent=2) if args.json else "\n".join(_listed(requests)))
            return 0
        found = running.ask("GET", f"/-/requests/{args.id}")
    recording = found["recording"]
    if recording is None:
        raise ProviderInvalidRequest(
            f"request {args.id} was not recorded; write log: {{bodies: true}} into config.yaml, and ask again"
        )
    stream = found["request"]["stream"]
    shown = {
        "request": found["request"],
        "cut": recording["cut"],
        "raw": _message(recording["raw"], stream),
        "recorded": {"format": recording["tool_call_format"], **_message(recording["clean"], stream)},
    }
    if args.format is not None:
        shown["replayed"] = {"format": args.format, **_message(replayed(recording, args.format, stream), stream)}
    print(json.dumps(shown, indent=2, ensure_ascii=False) if args.json else "\n".join(_page(shown)))
    return 0


def replayed(recording: dict[str, Any], format: str, stream: bool) -> list[str]:
    """The payloads, or the one body, that a client would have got of the engine's with another format.

    Raises ProviderInvalidRequest where there is no such format.
    """
    from gateway.answer.normalize import Answer, EngineError
    from gateway.wire.chat import ChatRequest, encode
    from normalizers import registry

    try:
        spec = registry.get(format)
    except registry.UnknownFormat as error:
        raise ProviderInvalidRequest(str(error)) from None
    # Prompts that are too long aren't kept, and mean nothing here.
    fields = {"messages": [{"role": "user", "content": ""}], **recording["request"]}
    answer = Answer(ChatRequest.parse(encode(fields)), spec, reasoning_open=recording["reasoning_open"])
    raw = [payload.encode() for payload in recording["raw"]]
    clean: list[bytes] = []
    try:
        if stream:
            answer.feed(raw, clean)
            clean += answer.finish(done=True)
        elif raw:
            clean.append(answer.whole(raw[0]))
    except (EngineError, GatewayError):
        # The engine failed there, and so did the answer.
        clean += answer.rest()
    return [payload.decode() for payload in clean]


def _message(payloads: list[str], stream: bool) -> dict[str, Any]:
    """What the first choice of an answer says."""
    message: dict[str, Any] = {}
    for payload in payloads:
        for choice in json.loads(payload).get("choices") or []:
            if choice.get("index", 0):
                continue
            _add(message, choice.get("delta" if stream else "message") or {})
            if choice.get("finish_reason"):
                message["finish_reason"] = choice["finish_reason"]
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


def _listed(requests: list[dict[str, Any]]) -> list[str]:
    if not requests:
        return ["nothing was asked yet, or log.requests is 0"]
    rows = [("ID", "TIME", "MODEL", "FACE", "OUTCOME", "SECONDS", "TOKENS", "RECORDED")]
    for entry in requests:
        at = time.strftime("%H:%M:%S", time.localtime(entry["at"]))
        recorded = "yes" if entry["recorded"] else "-"
        tokens = f"{entry['prompt_tokens']} + {entry['completion_tokens']}"
        rows.append(
            (
                *(str(entry["id"]), at, entry["model"], entry["face"], entry["outcome"]),
                *(f"{entry['seconds']:.2f}", tokens, recorded),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _page(shown: dict[str, Any]) -> list[str]:
    request = shown["request"]
    lines = [f"request {request['id']}: {request['model']}, {request['outcome']}"]
    if shown["cut"]:
        lines.append("(too long: its end was not recorded)")
    lines += ["", "the model wrote:", *_indented(shown["raw"])]
    lines += ["", f"the client got, read as {shown['recorded']['format']}:", *_indented(shown["recorded"])]
    if "replayed" in shown:
        lines += ["", f"read as {shown['replayed']['format']}:", *_indented(shown["replayed"])]
    return lines


def _indented(message: dict[str, Any]) -> list[str]:
    lines = [f"  reasoning: {line}" for line in message.get("reasoning_content", "").splitlines()]
    lines += [f"  {line}" for line in message.get("content", "").splitlines()]
    lines += [f"  call {call['name']} {call['arguments']}" for call in message.get("tool_calls", {}).values()]
    return [*lines, f"  finish_reason: {message.get('finish_reason')}"]

"""Asks a suite of model-test whole and streamed, and reads each text that the engine wrote again, both ways.

    python -m benchmarks.same_text

An engine may write other words the second time: llama.cpp does at temperature 0, if its prompt cache is warm. So two
figures say where a difference comes from. "client" counts the cases whose two answers differ; "raw" those of them for
which the engine wrote different texts. "same text" counts the cases in which one and the same text of the engine reads
differently: whole, in the engine's pieces with calls guarded as they were, in these pieces with calls held, and
character by character. It must be 0, and "client" may be no more than "raw"; otherwise the command exits with 1. With
`--cold` llama.cpp reads each prompt anew (`cache_prompt: false`), and "client" must be 0, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from gateway.answer.capture import RecordedAnswer
from gateway.answer.normalize import Answer
from gateway.config import find, load
from gateway.core import Gateway
from gateway.errors import GatewayError
from gateway.features.evaluation.model_test import commands, request, run
from gateway.features.evaluation.model_test.answers import ModelAnswer as Read
from gateway.features.evaluation.model_test.answers import StreamedParts, read_whole
from gateway.features.evaluation.model_test.client import AskFailed, Reply
from gateway.features.evaluation.model_test.client import Endpoint as At
from gateway.wire.chat import ChatRequest, encode
from normalizers import FormatSpec, registry

Json = dict[str, Any]
Said = tuple[str, str, list[tuple[str, str]], str | None]
"""Content, reasoning, calls, finish_reason."""


@dataclass(frozen=True)
class Written:
    """One text of the engine, in its pieces, and all that its reading depends on. got: what the client got."""

    got: Said
    request: ChatRequest
    spec: FormatSpec
    reasoning_open: bool
    guarded: bool
    pieces: tuple[str, ...]
    reason: str | None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def whole(self) -> Said:
        message = {"role": "assistant", "content": self.text}
        choice = {"index": 0, "message": message, "finish_reason": self.reason}
        body = {"object": "chat.completion", "choices": [choice]}
        return said(read_whole(json.loads(self._answer(guarded=False).whole(encode(body))), forced=True))

    def streamed(self, pieces: Sequence[str], *, guarded: bool) -> Said:
        answer = self._answer(guarded=guarded)
        shell = {"object": "chat.completion.chunk"}
        frames: list[Json] = [{"delta": {"content": piece}, "finish_reason": None} for piece in pieces]
        frames.append({"delta": {}, "finish_reason": self.reason})
        clean: list[bytes] = []
        answer.feed([encode({**shell, "choices": [{"index": 0, **frame}]}) for frame in frames], clean)
        stream = StreamedParts()
        for payload in [*clean, *answer.finish(done=True)]:
            stream.feed(payload.decode())
        stream.feed("[DONE]")
        return said(stream.answer(forced=True))

    def _answer(self, *, guarded: bool) -> Answer:
        return Answer(self.request, self.spec, reasoning_open=self.reasoning_open, guarded=guarded)

    def readings(self) -> dict[str, Said]:
        """By the way in which the text is read."""
        return {
            "whole": self.whole(),
            "streamed": self.streamed(self.pieces, guarded=self.guarded),
            "streamed, held": self.streamed(self.pieces, guarded=False),
            "character by character": self.streamed(list(self.text), guarded=self.guarded),
        }


def said(answer: Read) -> Said:
    return answer.content, answer.reasoning, [(call.name, call.arguments) for call in answer.calls], answer.finish


class InProcess:
    """Asks a gateway of this process, as model-test's client asks one over HTTP, and keeps what the engine wrote."""

    def __init__(self, gateway: Gateway, model: str, extra: Mapping[str, Any]) -> None:
        self.endpoint = At("", model)
        self.written: list[Written] = []
        self._gateway = gateway
        self._extra = extra

    async def get(self, path: str) -> Any:
        return {}

    async def ask(self, body: Mapping[str, Any], *, forced: bool = False, headers: Mapping[str, str] = {}) -> Reply:
        """Raises AskFailed."""
        asked = ChatRequest.parse(encode({**body, **self._extra}))
        began = time.monotonic()
        stream = StreamedParts()
        try:
            with await self._gateway.chat(asked) as going:
                if asked.stream:
                    while payloads := await going.payloads():
                        for payload in payloads:
                            stream.feed(payload.decode())
                    stream.feed("[DONE]")
                    answer = stream.answer(forced=forced)
                else:
                    answer = read_whole(json.loads(await going.whole()), forced=forced)
                self._keep(asked, going.answer, said(answer))
        except GatewayError as error:
            too_long = error.code == "context_length_exceeded"
            raise AskFailed("context_exceeded" if too_long else "server_error", str(error), 400) from error
        took = (time.monotonic() - began) * 1000
        return Reply(answer, took, took)

    def _keep(self, asked: ChatRequest, answer: Answer, got: Said) -> None:
        assert isinstance(answer, RecordedAnswer)
        recording = answer.recording
        choices = [choice for payload in recording.raw for choice in json.loads(payload).get("choices") or ()]
        parts = [choice.get("delta") or choice.get("message") or {} for choice in choices]
        reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
        pieces = tuple(part["content"] for part in parts if part.get("content"))
        spec = registry.get(recording.tool_call_format)
        reason = reasons[-1] if reasons else None
        self.written.append(
            Written(got, asked, spec, recording.reasoning_open, answer.contents.reading.guarded, pieces, reason)
        )


def count(id: str, whole: Sequence[Written], streamed: Sequence[Written], counts: Counter[str]) -> None:
    """Adds one case."""
    counts["texts"] += len(whole) + len(streamed)
    if [each.got for each in whole] != [each.got for each in streamed]:
        counts["client"] += 1
        counts["raw"] += [each.text for each in whole] != [each.text for each in streamed]
    # The grammar guards a whole answer as it does a streamed one.
    guarded = any(each.guarded for each in streamed)
    for written in (*whole, *streamed):
        readings = replace(written, guarded=guarded).readings()
        if differing := sorted(way for way, reading in readings.items() if reading != readings["whole"]):
            counts["same text"] += 1
            print(f"{id}: {', '.join(differing)}: {written.text!r}", file=sys.stderr)
            break


async def measure(model: str, suites: list[str], extra: Json, max_tokens: int = 1024) -> int:
    """Prints the figures; 1 if they are bad. extra: fields for each request."""
    config = load(find(None))
    config = msgspec.structs.replace(config, log=msgspec.structs.replace(config.log, bodies=True))
    cases = commands.suites(suites).cases
    settings = request.Settings(stream="both", max_tokens=max_tokens)
    plan = run.RunPlan(settings, run.tasks(cases, settings, 1), {}, ours=True)
    counts: Counter[str] = Counter(cases=len(cases))
    async with Gateway(config) as gateway:
        client = InProcess(gateway, model, extra)
        texts: dict[str, dict[bool, list[Written]]] = defaultdict(dict)
        with tempfile.TemporaryDirectory() as folder:
            samples = run.Samples(Path(folder), {})
            for task in plan.tasks:
                before = len(client.written)
                alone = run.RunPlan(settings, (task,), {}, ours=True, max_error_rate=1)
                await run.run(client, alone, samples)  # type: ignore[arg-type]
                texts[task.case.id][task.stream] = client.written[before:]
            samples.close()
    for id, ways in texts.items():
        count(id, ways[False], ways[True], counts)
    print("| model | suite | cases | texts | client | of them raw | same text |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    figures = (counts[name] for name in ("cases", "texts", "client", "raw", "same text"))
    print(f"| {model} | {'+'.join(suites)} | {' | '.join(map(str, figures))} |")
    unexplained = counts["client"] if extra else counts["client"] - counts["raw"]
    return 1 if counts["same text"] or unexplained else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ctxgate-test-tools")
    parser.add_argument("--suite", nargs="*", default=["core"])
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    extra: Json = {"cache_prompt": False} if args.cold else {}
    sys.exit(asyncio.run(measure(args.model, args.suite, extra, args.max_tokens)))


if __name__ == "__main__":
    main()

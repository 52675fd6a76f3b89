"""Runs the cases, judges them, and writes each sample at once, so that a run can be resumed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gateway.features.evaluation.model_test import judge, request
from gateway.features.evaluation.model_test.answers import ModelAnswer, RawCall
from gateway.features.evaluation.model_test.cases import Case, Json, digest
from gateway.features.evaluation.model_test.client import AskFailed, Client, Endpoint, Reply
from gateway.features.evaluation.model_test.fake import CASE_HEADER
from gateway.features.evaluation.model_test.request import Settings
from gateway.features.evaluation.model_test.shape import is_sample

SAMPLES = "samples.jsonl"
FIRST = b'{"fingerprint":'


class OtherRun(Exception):
    """The folder has samples of a run with other settings; names the differences."""


class Unreachable(Exception):
    """The run can't begin: the endpoint doesn't answer, or doesn't have the model."""


@dataclass(frozen=True)
class Task:
    case: Case
    stream: bool
    repeat: int

    @property
    def key(self) -> str:
        return f"{self.case.id}|{'stream' if self.stream else 'whole'}|{self.repeat}"


@dataclass(frozen=True)
class RunPlan:
    settings: Settings
    tasks: tuple[Task, ...]
    fingerprint: Json
    """What must be equal to resume a run: see `fingerprint`."""
    concurrency: int = 1
    max_error_rate: float = 0.02
    fake: bool = False
    ours: bool = False
    """The endpoint is a ctxgate: what it refuses again and again is its own fault, not infrastructure's."""


def tasks(cases: Sequence[Case], settings: Settings, repeat: int) -> tuple[Task, ...]:
    """All cases, then all once more: two answers to one case never follow each other."""
    return tuple(
        Task(case, stream, number) for number in range(repeat) for case in cases for stream in settings.ways(case)
    )


def fingerprint(settings: Settings, endpoint: Endpoint, checker: str) -> Json:
    return {"request": settings.facts(), "model": endpoint.model, "url": endpoint.shown, "checker": checker}


class Samples:
    """`samples.jsonl`: a first line with the fingerprint, then a line for each sample; only ever added to."""

    def __init__(self, folder: Path, wanted: Json, *, fresh: bool = False) -> None:
        """Raises OtherRun."""
        self.file = folder / SAMPLES
        folder.mkdir(parents=True, exist_ok=True)
        if fresh and self.file.exists():
            self.file.rename(folder / f"samples-{time.time_ns()}.jsonl")
        self.done: dict[str, Json] = {}
        resumed = begun(self.file)
        if resumed:
            head, samples = read_samples(self.file)
            if head != wanted:
                changed = sorted(_differences(head, wanted))
                raise OtherRun(
                    f"{self.file} was asked otherwise: {'; '.join(changed)}. Choose another --out, or --fresh"
                )
            self.done = {sample["key"]: sample for sample in samples}
        self._out: IO[str] = self.file.open("a" if resumed else "w", encoding="utf-8")
        if not resumed:
            self._write({"fingerprint": wanted})
        else:
            # A run that was killed may have left half a line.
            self._out.write("\n")

    def add(self, sample: Json) -> None:
        self.done[sample["key"]] = sample
        self._write(sample)

    def close(self) -> None:
        self._out.close()

    def _write(self, line: Json) -> None:
        self._out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._out.flush()


def begun(file: Path) -> bool:
    """Whether the file has its first line, before which a kill may have come."""
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return b"\n" in data or not FIRST.startswith(data[: len(FIRST)])


def read_samples(file: Path) -> tuple[Json, list[Json]]:
    """The fingerprint and the samples; of one key the last. Passes over what is none, such as half a line, which a
    kill may leave. Raises OtherRun if the first line is no fingerprint."""
    found: list[Any] = []
    for line in file.read_text("utf-8", "replace").split("\n"):
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    if not found or not isinstance(found[0], dict) or not isinstance(found[0].get("fingerprint"), dict):
        raise OtherRun(f"{file} isn't a file of samples")
    latest = {sample["key"]: sample for sample in found[1:] if is_sample(sample)}
    return found[0]["fingerprint"], list(latest.values())


def _differences(one: Any, other: Any, at: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from _differences(one.get(key), other.get(key), f"{at}.{key}" if at else key)
    elif one != other:
        yield f"{at} {one!r} there, {other!r} now"


async def preflight(client: Client, settings: Settings, warmup: int) -> Json:
    """The server's description of itself, after a test chat and a test tool call. Raises Unreachable."""
    facts: Json = {}
    try:
        listing = await client.get("/models")
        entries = {entry["id"]: entry for entry in listing["data"]}
    except AskFailed as error:
        raise Unreachable(f"{client.endpoint.shown}/models: {error}") from error
    except (KeyError, TypeError) as error:
        raise Unreachable(f"{client.endpoint.shown}/models isn't OpenAI's list of models") from error
    model = client.endpoint.model
    if model not in entries:
        raise Unreachable(f"{client.endpoint.shown} has no model {model}; it has: {', '.join(entries) or 'none'}")
    facts["ours"] = "tool_call_format" in entries[model]
    tool = {"name": "get_time", "description": "The time.", "parameters": {"type": "object", "properties": {}}}
    plain = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, "model": model, "temperature": 0}
    calling = {**plain, "tools": [{"type": "function", "function": tool}]}
    try:
        for _ in range(max(1, warmup)):
            await client.ask({**plain, "stream": False})
        await client.ask({**calling, "stream": False})
        if settings.stream != "off":
            await client.ask({**calling, "stream": True})
    except AskFailed as error:
        raise Unreachable(f"{client.endpoint.shown}: a first question to {model} failed: {error}") from error
    return facts


async def run(
    client: Client, plan: RunPlan, samples: Samples, tell: Callable[[Json], None] = lambda sample: None
) -> None:
    """Runs the missing cases; repeats those that ended with an error in an earlier run.

    Stops as soon as more has failed than may fail, since no score can come of that, and at once where the server has
    ceased to answer at all.
    """
    waiting = [task for task in plan.tasks if samples.done.get(task.key, {}).get("status") in (None, "error")]
    allowed = plan.max_error_rate * len(plan.tasks)
    errors = 0
    gone = False
    queue = iter(waiting)

    async def work() -> None:
        nonlocal errors, gone
        for task in queue:
            if errors > allowed or gone:
                return
            sample = await _sample(client, plan, task)
            errors += suspicious(sample)
            samples.add(sample)
            tell(sample)
            if sample["kind"] in ("timeout", "connection") and not await _alive(client):
                gone = True

    async with asyncio.TaskGroup() as group:
        for _ in range(plan.concurrency):
            group.create_task(work())


async def _alive(client: Client) -> bool:
    try:
        await client.get("/models")
    except AskFailed:
        return False
    return True


def suspicious(sample: Json) -> bool:
    """Whether it counts towards the error rate: no answer, or a 5xx, even one that recurs for this case."""
    return sample["status"] == "error" or (sample.get("http") or 0) >= 500


async def _sample(client: Client, plan: RunPlan, task: Task) -> Json:
    case = task.case
    sample: Json = {
        "key": task.key,
        "case": case.id,
        "hash": case.hash,
        "category": case.category,
        "way": "stream" if task.stream else "whole",
        "repeat": task.repeat,
        "status": "error",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "answers": [],
        "replies": [],
    }
    messages = list(case.messages)
    before: list[RawCall] = []
    for number, step in enumerate(case.steps):
        if number and step.user is not None:
            messages.append({"role": "user", "content": step.user})
        body = request.body(case, messages, plan.settings, client.endpoint.model, stream=task.stream)
        sample.setdefault("request_sha256", digest(body))
        headers = {CASE_HEADER: f"{case.id}/{number}"} if plan.fake else {}
        try:
            reply = await client.ask(body, forced=request.forced(case), headers=headers)
        except AskFailed as error:
            sample |= await _failure(client, plan, body, headers, error)
            break
        answer = request.own_names(reply.answer, case, plan.settings)
        sample["answers"].append(answer.plain())
        sample["replies"].append(_times(reply))
        verdict = verdict_of(case, number, answer, before)
        _note(sample, number, verdict, len(case.steps))
        if not verdict.passed:
            break
        if number + 1 < len(case.steps):
            before += answer.calls
            messages += _turn(answer, step.results)
    return sample


def verdict_of(case: Case, number: int, answer: ModelAnswer, before: Sequence[RawCall]) -> judge.Verdict:
    if case.checker == "bfcl":
        from gateway.features.evaluation.model_test import bfcl

        return bfcl.judge(case, answer)
    return judge.judge(case, case.steps[number], answer, before)


def _note(sample: Json, number: int, verdict: judge.Verdict, steps: int) -> None:
    kind, detail = verdict.kind, verdict.detail
    if kind is not None and number > 0:
        kind, detail = f"chain_broken@{number + 1}", f"{kind}: {detail}"
    sample["status"] = "pass" if kind is None else "fail"
    sample["kind"], sample["detail"] = kind, detail
    sample["steps"] = [number + (kind is None), steps]
    sample["well_formed"] = sample.get("well_formed", True) and verdict.well_formed
    sample["folded"] = sample.get("folded", True) and verdict.folded
    if number == 0:
        sample["decided"] = verdict.decided
        sample["names"], sample["count"] = verdict.names_right, verdict.count_right
        sample["arguments"] = list(vars(verdict.arguments).values())
        sample["schema_valid"] = verdict.schema_valid


async def _failure(client: Client, plan: RunPlan, body: Json, headers: Mapping[str, str], error: AskFailed) -> Json:
    """What a question without an answer means. The case fails only where asking again shows that it is at fault."""
    found = {"status": "error", "kind": error.kind, "detail": error.detail, "http": error.status}
    fail: Json = {"status": "fail", "folded": False, "well_formed": True, "steps": [0, 1]}
    if error.kind == "context_exceeded":
        return {**found, **fail, "decided": False}
    if plan.ours and error.kind in ("refused", "server_error", "bad_response"):
        plain = {"model": client.endpoint.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
        try:
            await client.ask({**plain, "stream": False})
        except AskFailed:
            return found
        try:
            await client.ask(body, headers=headers)
        except AskFailed as again:
            if again.kind == error.kind and again.status == error.status:
                return {**found, **fail, "kind": "gateway_error", "well_formed": False, "decided": False}
    return found


def _times(reply: Reply) -> Json:
    numbers = {
        "ms": reply.ms,
        "ttfb_ms": reply.ttfb_ms,
        "ttft_ms": reply.ttft_ms,
        "first_call_ms": reply.first_call_ms,
        "tokens_per_s": reply.tokens_per_s,
    }
    return {
        **{name: round(value, 2) for name, value in numbers.items() if value is not None},
        "attempts": reply.attempts,
    }


def _turn(answer: ModelAnswer, results: Sequence[str]) -> list[Json]:
    """The model's turn and its tools' results, in the form of the next request."""
    if not answer.calls:
        return [{"role": "assistant", "content": answer.content}]
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.calls
    ]
    turn: list[Json] = [{"role": "assistant", "content": answer.content, "tool_calls": calls}]
    for call, result in zip(answer.calls, results, strict=True):
        turn.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return turn

"""The gate `traffic` of `ctxgate swap`: recorded requests, asked again of two models, and what the user sees of it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gateway.cli.client import RunningGateway, key_for
from gateway.cli.text import say
from gateway.config.address import is_loopback
from gateway.errors import ProviderInvalidRequest

if TYPE_CHECKING:
    from gateway.config import Config, Model
    from gateway.features.evaluation.model_test.answers import ModelAnswer
    from gateway.features.evaluation.model_test.client import Client
    from gateway.features.evaluation.model_test.traffic import Asked, Decision, Difference, Fault

DAY = 86_400.0
MAX_TOKENS = 2048
"""Of an answer to a request that sets no bound itself."""
ANSWER_SECONDS = 600.0
TRIES = 2
SHOWN_CHARACTERS = 600
PROMOTED, WORSE, UNREACHABLE, TOO_FEW = 0, 1, 3, 4

NOT_REPLAYED = ("stream", "stream_options", "n", "seed", "top_p", "top_k", "min_p", "store", "metadata", "user")
"""Fields of a recorded request that don't belong to one whole answer at temperature 0."""


def gate(config: Config, active: Model, candidate: Model, *, days: float, limit: int, worst: int, send: bool) -> int:
    """Returns the exit code: 0 if the candidate may be promoted. Writes no conversation to any file.

    send: whether conversations may leave this machine. Raises ProviderInvalidRequest if they would, and are not to.
    """
    if (where := elsewhere(candidate, config)) is not None and not send:
        raise ProviderInvalidRequest(
            f"{where}: the recorded conversations would leave this machine; to allow that, add --send-conversations"
        )
    from gateway.features.evaluation.model_test import traffic
    from gateway.features.evaluation.model_test.run import Unreachable

    asked = recorded(config, active.name, days, limit)
    say(f"{len(asked)} recorded requests of {active.name}, replayed with both models", file=sys.stderr)
    if not asked:
        _keep(active, f"there are no recordings for {active.name}: set log: {{bodies: true}}, and use it for some days")
        return TOO_FEW
    try:
        ours = _answers(config, active.name, asked)
        theirs = _answers(config, candidate.name, asked)
    except Unreachable as error:
        _keep(active, str(error))
        return UNREACHABLE
    except KeyboardInterrupt:
        _keep(active, "interrupted")
        return 130
    made = traffic.decide([traffic.Pair(*each) for each in zip(asked, ours, theirs, strict=True)])
    _show(made, active, candidate, worst)
    return _verdict(made, active, candidate)


def elsewhere(model: Model, config: Config) -> str | None:
    """Why requests of the model would leave this machine, by itself or a fallback; None if they stay."""
    for each in (model, *(config.models[name] for name in model.fallbacks)):
        for url in filter(None, (each.base_url, *each.replicas)):
            host = urlsplit(url).hostname or ""
            if not url.startswith("unix:") and not is_loopback(host):
                return f"{each.name} is at {host}"
        if each.runtime == "ollama" and each.upstream_name.endswith(("-cloud", ":cloud")):
            return f"{each.name} runs in Ollama's cloud"
        if ":" in each.runtime and each.path is None and each.base_url is None and each.uds is None:
            return f"{each.name} has the backend {each.runtime}, and no address that shows where it runs"
    return None


def recorded(config: Config, model: str, days: float, limit: int) -> list[Asked]:
    """The newest complete recordings of the model, as the running gateway has them, the oldest first.

    So an engine that answers them reads no turn of a conversation twice.

    Raises ProviderUnavailable if no gateway runs.
    """
    since = time.time() - days * DAY
    found: list[Asked] = []
    with RunningGateway(config.source, None) as gateway:
        for entry in gateway.ask("GET", "/-/requests")["requests"]:
            fits = entry["recorded"] and entry["model"] == model and entry["outcome"] == "ok" and entry["at"] >= since
            if fits and len(found) < limit:
                one = _asked(gateway.ask("GET", f"/-/requests/{entry['id']}"))
                found += [one] if one is not None else []
    return found[::-1]


def _asked(found: Any) -> Asked | None:
    """None for a recording that misses a part."""
    from gateway.features.evaluation.model_test.answers import NotAnAnswer, StreamedParts, read_whole
    from gateway.features.evaluation.model_test.traffic import Asked

    recording = found["recording"]
    if recording is None or recording["cut"] or "messages" not in recording["request"]:
        return None
    body = {name: value for name, value in recording["request"].items() if value is not None}
    forced = isinstance(body.get("tool_choice"), dict)
    try:
        if found["request"]["stream"]:
            stream = StreamedParts()
            for payload in (*recording["clean"], "[DONE]"):
                stream.feed(payload)
            reference = stream.answer(forced=forced)
        else:
            reference = read_whole(json.loads(recording["clean"][0]), forced=forced)
    except (NotAnAnswer, ValueError, IndexError):
        return None
    return Asked(found["request"]["id"], body, reference)


# The answers of a model


def _answers(config: Config, model: str, asked: Sequence[Asked]) -> list[ModelAnswer | Fault | None]:
    """Through a gateway of its own beside any running one. Raises Unreachable."""
    from gateway.features.evaluation.model_test import target
    from gateway.features.evaluation.model_test.client import Client, Endpoint

    async def ask(url: str) -> list[ModelAnswer | Fault | None]:
        async with Client(
            Endpoint(url, model, key_for(config.server)), timeout=ANSWER_SECONDS, retries=TRIES
        ) as client:
            with _progress(model, len(asked)) as advance:
                return [await _answer(client, each, advance) for each in asked]

    with (
        TemporaryDirectory(prefix="ctxgate-swap-") as folder,
        target.gateway(config.source, model, Path(folder) / "gateway.log") as url,
    ):
        return asyncio.run(ask(url))


async def _answer(client: Client, asked: Asked, advance: Callable[[], None]) -> ModelAnswer | Fault | None:
    from gateway.features.evaluation.model_test.client import AskFailed
    from gateway.features.evaluation.model_test.traffic import Fault

    body = {name: value for name, value in asked.body.items() if name not in NOT_REPLAYED}
    if "max_completion_tokens" not in body:
        body.setdefault("max_tokens", MAX_TOKENS)
    body |= {"model": client.endpoint.model, "temperature": 0, "stream": False}
    try:
        return (await client.ask(body, forced=isinstance(body.get("tool_choice"), dict))).answer
    except AskFailed as error:
        # Another engine may refuse what this one takes; that is the candidate's, while a broken connection isn't.
        return Fault("unanswered", error.detail) if error.kind in ("context_exceeded", "refused") else None
    finally:
        advance()


@contextmanager
def _progress(model: str, total: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(model, total=total)
        yield lambda: bar.advance(task)


# What the user sees


def _show(made: Decision, active: Model, candidate: Model, worst: int) -> None:
    from gateway.cli.table import show, table

    rows = [
        (
            *(test.name, str(test.n), f"{test.baseline:.1f} %", f"{test.candidate:.1f} %"),
            f"{test.difference:+.1f} ({test.low:+.1f} to {test.high:+.1f})",
            *(f"{test.p_worse:.3g}", "WORSE" if test.regression else ""),
        )
        for test in made.tests
    ]
    if rows:
        head = ("", "PAIRS", active.name, candidate.name, "POINTS (95 %)", "P(WORSE)", "")
        show(table(head, rows, right=("PAIRS", active.name, candidate.name, "P(WORSE)")))
    for difference in made.differences[:worst]:
        _show_difference(difference, active, candidate)
    if (rest := len(made.differences) - worst) > 0:
        say(f"\n{rest} more requests that only {candidate.name} answers wrong: --worst shows more")


def _show_difference(difference: Difference, active: Model, candidate: Model) -> None:
    from rich.table import Table

    from gateway.cli.table import show
    from gateway.features.evaluation.model_test.answers import ModelAnswer
    from gateway.wire.text import printable

    asked = difference.pair.asked
    say(f"\nrequest {asked.number}: {printable(difference.fault.step)}: {printable(difference.fault.detail)}")
    say(f"  {printable(_question(asked))}")
    sides = Table(pad_edge=False, header_style="bold", expand=True, box=None)
    cells = []
    for name, answer in ((active.name, difference.pair.current), (candidate.name, difference.pair.candidate)):
        sides.add_column(name, ratio=1, overflow="fold")
        cells.append(printable(_text(answer) if isinstance(answer, ModelAnswer) else difference.fault.detail))
    sides.add_row(*cells)
    show(sides)


def _question(asked: Asked) -> str:
    """The end of the conversation."""
    content = asked.body["messages"][-1].get("content")
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    words = " ".join(str(content or "").split())
    return words if len(words) <= SHOWN_CHARACTERS // 3 else "…" + words[-SHOWN_CHARACTERS // 3 :]


def _text(answer: ModelAnswer) -> str:
    lines = [f"{call.name} {call.arguments}" for call in answer.calls]
    lines = [answer.content] * bool(answer.content) + lines + [f"finish: {answer.finish}"]
    text = "\n".join(lines)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _verdict(made: Decision, active: Model, candidate: Model) -> int:
    if made.outcome == "promote":
        say(f"\n{candidate.name} is not shown to be worse in {made.pairs} requests")
        return PROMOTED
    if made.outcome == "worse":
        _keep(active, f"{candidate.name} answers the recorded requests worse")
        return WORSE
    if made.outcome == "unanswered":
        _keep(active, f"{made.unanswered} requests got no answer, which says nothing about {candidate.name}")
        return TOO_FEW
    _keep(
        active,
        f"too few requests to decide: {made.pairs}; with as many changes as these have, a drop of 5 points shows in "
        f"{made.needed}. Raise log.requests, wait, or use --gate core",
    )
    return TOO_FEW


def _keep(active: Model, why: str) -> None:
    say(f"\n{why}\n{active.name} stays the active model; nothing changed", file=sys.stderr)

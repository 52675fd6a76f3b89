"""The request log and the engines as Prometheus metrics, computed for each scrape."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from gateway.core import Gateway
from gateway.core.reload import Reloader
from gateway.engines import State
from gateway.features.operations.snapshot import waiting
from gateway.observe.request_log import BOUNDS, Histogram
from gateway.observe.vitals import Vitals

STATES: tuple[str, ...] = get_args(State)
TOGETHER = 50
"""Models to look at before others have their turn: there may be thousands."""

Value = TypeVar("Value")


async def exposition(gateway: Gateway, reloader: Reloader | None, vitals: Vitals, accept: str) -> tuple[bytes, str]:
    """The metrics in the format that `accept` asks for, and its content type."""
    collected = _Collected([metric async for metric in _Metrics(gateway, reloader, vitals).collect()])
    encode, content_type = choose_encoder(accept)
    text: bytes = await asyncio.to_thread(encode, collected)
    return text, content_type


class _Collected(NamedTuple):
    """What an encoder asks of a registry."""

    metrics: list[Metric]

    def collect(self) -> list[Metric]:
        return self.metrics


async def _in_turns(models: Mapping[str, Value]) -> AsyncIterator[tuple[str, Value]]:
    for at, item in enumerate([*models.items()]):
        if at % TOGETHER == TOGETHER - 1:
            await asyncio.sleep(0)
        yield item


class _Metrics:
    def __init__(self, gateway: Gateway, reloader: Reloader | None, vitals: Vitals) -> None:
        self._gateway = gateway
        self._vitals = vitals
        self._reloader = reloader

    async def collect(self) -> AsyncIterator[Metric]:
        for parts in (self._answers(), self._units(), self._engines(), self._replicas()):
            for metric in await parts:
                yield metric
        for metric in self._prompts():
            yield metric
        yield GaugeMetricFamily(
            "ctxgate_loop_lag_seconds",
            "The longest delay of the event loop in the last 10 to 20 seconds.",
            self._vitals.lag.longest(),
        )
        if (reloader := self._reloader) is not None:
            yield GaugeMetricFamily(
                "ctxgate_config_valid",
                "1 if the running configuration is that of config.yaml.",
                int(not reloader.problems),
            )
            yield CounterMetricFamily(
                "ctxgate_config_reloads", "Changes of config.yaml that were applied.", reloader.reloads
            )

    async def _answers(self) -> Iterable[Metric]:
        log = self._gateway.request_log
        names = dict.fromkeys([*self._gateway.routes, *log.models()])
        requests = CounterMetricFamily(
            "ctxgate_requests",
            "Ended requests by API; the label face, its old name, stays for queries that use it.",
            labels=["model", "api", "face", "outcome"],
        )
        duration = HistogramMetricFamily(
            "ctxgate_request_seconds", "From the request to the end of its answer.", labels=["model"]
        )
        first = HistogramMetricFamily(
            "ctxgate_time_to_first_token_seconds", "From the request to a stream's first payload.", labels=["model"]
        )
        tokens = CounterMetricFamily("ctxgate_tokens", "Tokens, as engines count them.", labels=["model", "kind"])
        chunks = CounterMetricFamily("ctxgate_chunks", "Payloads that engines streamed.", labels=["model"])
        spared = CounterMetricFamily(
            "ctxgate_prompt_seconds_saved",
            "What reading restored tokens would have taken, at the speed of the last prompt.",
            labels=["model"],
        )
        repairs = CounterMetricFamily(
            "ctxgate_normalizer_repairs",
            "mended: answers with repaired calls; healed: repairs of replayed messages; warning: text that is no call.",
            labels=["model", "kind", "what"],
        )
        decided = CounterMetricFamily(
            "ctxgate_decided_answers",
            "Answers that a call_threshold decided before they were written: calls or words.",
            labels=["model", "what"],
        )
        async for model, _ in _in_turns(names):
            found = log.stats(model)
            for what, count in found.decided.items():
                decided.add_metric([model, what], count)
            for (api, outcome), count in found.requests.items():
                requests.add_metric([model, api, api, outcome], count)
            _add_histogram(duration, model, found.duration)
            _add_histogram(first, model, found.first)
            kinds = {
                "prompt": found.prompt_tokens,
                "prompt_cached": found.cached_tokens,
                "prompt_restored": found.restored_tokens,
                "completion": found.completion_tokens,
            }
            for kind, count in kinds.items():
                tokens.add_metric([model, kind], count)
            chunks.add_metric([model], found.chunks)
            spared.add_metric([model], found.seconds_saved)
            counted: Iterable[tuple[str, Mapping[str, int]]] = (
                ("mended", found.mended),
                ("healed", found.healed),
                ("warning", found.warnings),
            )
            for kind, counts in counted:
                for what, count in counts.items():
                    repairs.add_metric([model, kind, what], count)
        return requests, duration, first, tokens, chunks, spared, repairs, decided

    async def _units(self) -> Iterable[Metric]:
        log = self._gateway.request_log
        units = CounterMetricFamily(
            "ctxgate_units",
            "What requests for sound and pictures count: sound_seconds, characters, pictures.",
            labels=["model", "unit"],
        )
        async for model, _ in _in_turns(dict.fromkeys(log.models())):
            for unit, amount in log.stats(model).units.items():
                units.add_metric([model, unit], amount)
        return (units,)

    def _prompts(self) -> Iterator[Metric]:
        prompts = self._gateway.prompts
        yield GaugeMetricFamily("ctxgate_saved_prompts", "Saved prompts.", len(prompts))
        yield GaugeMetricFamily("ctxgate_saved_prompt_bytes", "Size of their files.", prompts.size)
        yield CounterMetricFamily("ctxgate_prompt_saves", "Prompts that engines saved.", prompts.saves)
        yield CounterMetricFamily("ctxgate_prompt_restores", "Prompts that engines restored.", prompts.restores)
        yield CounterMetricFamily("ctxgate_prompt_save_failures", "Failures to save a prompt.", prompts.troubles.count)

    async def _engines(self) -> Iterable[Metric]:
        in_flight = GaugeMetricFamily(
            "ctxgate_requests_in_flight", "Requests without a complete answer.", labels=["model"]
        )
        state = GaugeMetricFamily(
            "ctxgate_engine_state", "1 for the present state, 0 for the others.", labels=["model", "state"]
        )
        queue = GaugeMetricFamily("ctxgate_queue_length", "Requests that wait for an engine.", labels=["model"])
        tiers = GaugeMetricFamily(
            "ctxgate_requests_waiting", "Requests that wait for an engine, by service tier.", labels=["model", "tier"]
        )
        aside = GaugeMetricFamily(
            "ctxgate_answers_put_aside", "Flex answers that are put aside and wait to go on.", labels=["model"]
        )
        memory = GaugeMetricFamily("ctxgate_engine_memory_bytes", "Memory of the engine's processes.", labels=["model"])
        starts = CounterMetricFamily("ctxgate_engine_starts", "Starts of the engine.", labels=["model"])
        crashes = CounterMetricFamily(
            "ctxgate_engine_crashes", "Exits of the engine that the gateway did not cause.", labels=["model"]
        )
        asides = CounterMetricFamily(
            "ctxgate_put_asides", "Flex answers that gave way in the middle.", labels=["model"]
        )
        leaving: Counter[str] = Counter()
        for former in self._gateway.leaving.values():
            leaving[former.model.name] += former.requests.count
        for name in leaving.keys() - self._gateway.routes.keys():
            in_flight.add_metric([name], leaving[name])
        async for name, route in _in_turns(self._gateway.routes):
            in_flight.add_metric([name], route.requests.count + leaving[name])
            status = route.engine.status() if route.engine is not None else None
            line = waiting(route, status)
            queue.add_metric([name], line["waiting"])
            for tier, count in line["waiting_tiers"].items():
                tiers.add_metric([name, tier], count)
            aside.add_metric([name], line["put_aside"])
            if route.engine is None or status is None:
                continue
            for each in STATES:
                state.add_metric([name, each], int(each == status.state))
            memory.add_metric([name], status.resident_bytes)
            starts.add_metric([name], status.starts)
            asides.add_metric([name], route.engine.requests.places.put_asides)
            crashes.add_metric([name], status.crashes)
        return in_flight, state, queue, tiers, aside, memory, starts, crashes, asides

    async def _replicas(self) -> Iterable[Metric]:
        healthy = GaugeMetricFamily("ctxgate_replica_healthy", "1 if the server answers.", labels=["model", "url"])
        in_flight = GaugeMetricFamily(
            "ctxgate_replica_in_flight", "Requests that the server is answering.", labels=["model", "url"]
        )
        async for name, route in _in_turns(self._gateway.routes):
            for replica in route.server.replicas():
                healthy.add_metric([name, replica.url], int(replica.healthy))
                in_flight.add_metric([name, replica.url], replica.in_flight)
        return healthy, in_flight


def _add_histogram(family: HistogramMetricFamily, model: str, histogram: Histogram) -> None:
    buckets, total = [], 0
    for bound, count in zip([*map(str, BOUNDS), "+Inf"], histogram.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    family.add_metric([model], buckets, histogram.sum)

"""Limits of keys: the counts as pure values, and a gateway that holds to them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.app import build
from gateway.config import Config, Model, Server
from gateway.errors import ProviderInvalidRequest
from gateway.features.keys.ledger import Window
from gateway.features.keys.limiter import Limiter
from gateway.features.keys.meter import KeyMeter
from gateway.features.keys.words import parse, written
from gateway.server.keys import FILE, KeyFile
from gateway.server.principal import Principal
from gateway.wire.limits import Left, LimitReached, Limits, Standing, anthropic_headers, duration, openai_headers
from gateway.wire.usage import MAX_TOKENS
from tests.gateway.running import FAST
from tests.patience import PATIENCE
from tests.provider.server import serve

SAY = {"model": "echo", "messages": [{"role": "user", "content": "one two three"}]}
DAY = 86400


class Clock:
    """A meter's time, which `pass_on` moves, with a tick each second while the meter wants them."""

    def __init__(self, at: float = 0.0) -> None:
        self.at = at
        self._woken: list[tuple[float, KeyMeter]] = []

    def __call__(self) -> float:
        return self.at

    def meter(self, limits: Limits) -> KeyMeter:
        return KeyMeter("k", limits, lambda meter: self._woken.append((self.at + 1, meter)), self, self)

    def pass_on(self, seconds: float) -> None:
        until = self.at + seconds
        while self._woken and self._woken[0][0] <= until:
            self.at, meter = self._woken.pop(0)
            if meter.tick():
                self._woken.append((self.at + 1, meter))
        self.at = until


def used(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens - tokens // 2, "completion_tokens": tokens // 2}


def left_of(meter: KeyMeter) -> dict[bytes, bytes]:
    """Counts a request in; the headers of its answer."""
    left = meter.enter()
    lines = meter.lines(left)
    assert meter.answer(b"a: b\r\n", left, b"words") == b"a: b\r\n%bcontent-length: 5\r\n\r\nwords" % lines
    standing = dict(openai_headers(meter.standing(), 0.0))
    assert dict(line.split(b": ") for line in lines.splitlines()) == standing
    return standing


# The counts


@given(st.integers(1, 20), st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5)), max_size=60))
def test_no_window_holds_more_than_the_limit(limit: int, asked: list[tuple[float, int]]) -> None:
    """Each is let in once `wait` is 0. An amount above 1 may pass the limit, by what it is more than 1 alone."""
    window, now = Window(limit), 0.0
    let_in: list[tuple[float, int]] = []
    for after, amount in asked:
        now += after
        if window.wait(now) == 0:
            window.add(amount, now)
            let_in.append((now, amount))
    for at, _ in let_in:
        within = [amount for other, amount in let_in if at - 60 < other <= at]
        assert sum(within[:-1]) < limit


@given(st.integers(1, 9), st.lists(st.floats(0, 20), min_size=1, max_size=40))
def test_after_the_wait_one_more_is_allowed(limit: int, gaps: list[float]) -> None:
    window, now = Window(limit), 0.0
    for gap in gaps:
        now += gap
        if (wait := window.wait(now)) > 0:
            assert wait <= 61
            assert window.left(now).remaining == 0
            assert deepcopy(window).wait(now + wait * 0.99 - 0.001) > 0
            assert deepcopy(window).wait(now + wait) == 0
        else:
            window.add(1, now)
    left = window.left(now)
    assert window.left(now + left.reset) == Left(limit, limit, 0.0)


@given(
    st.integers(1, 6),
    st.integers(1, 40),
    st.lists(st.tuples(st.floats(0, 25), st.integers(0, 30), st.booleans()), min_size=1, max_size=60),
)
def test_a_meter_counts_as_one_would_by_hand(requests: int, tokens: int, asked: list[tuple[float, int, bool]]) -> None:
    """However often it is looked at. Two seconds more or less: what comes within one counts from its end, by a tick."""
    clock = Clock(0.5)
    meter = clock.meter(Limits(requests_per_minute=requests, tokens_per_minute=tokens))
    let_in: list[float] = []
    spent: list[tuple[float, int]] = []

    def has_room(seconds: int) -> bool:
        since = clock.at - seconds
        return sum(at > since for at in let_in) < requests and sum(n for at, n in spent if at > since) < tokens

    for after, amount, looks in asked:
        clock.pass_on(after)
        if looks:
            meter.standing()
        try:
            meter.enter()
        except LimitReached:
            assert not has_room(62)
            continue
        assert has_room(60)
        meter.leave()
        meter.spend(used(amount), clock.at)
        let_in.append(clock.at)
        spent.append((clock.at, amount))


def test_a_meter_forgets_nothing_within_a_day_and_all_after_it() -> None:
    clock = Clock(DAY * 20_000 + 100.0)
    meter = clock.meter(Limits(tokens_per_day=100))
    meter.remember(70)
    assert left_of(meter)[b"x-ratelimit-remaining-tokens"] == b"30"
    meter.spend(used(30), clock.at)
    with pytest.raises(LimitReached, match="key k: 100 tokens a day are its limit; try again in 86300 s") as refused:
        meter.enter()
    headers = dict([*refused.value.headers(), *openai_headers(refused.value.standing, 0.0)])
    assert headers[b"retry-after"] == b"86300"
    assert headers[b"x-ratelimit-reset-tokens"] == b"23h58m20s"
    clock.pass_on(DAY)
    assert left_of(meter)[b"x-ratelimit-remaining-tokens"] == b"100"


@given(st.integers(1, 6), st.lists(st.booleans(), max_size=60))
def test_requests_at_a_time(maximum: int, steps: list[bool]) -> None:
    meter, running = Clock().meter(Limits(parallel=maximum)), 0
    for comes in steps:
        if comes and running == maximum:
            with pytest.raises(LimitReached, match="at a time are its limit"):
                meter.enter()
        elif comes:
            meter.enter()
            running += 1
        elif running:
            meter.leave()
            running -= 1
        assert meter.running == running <= maximum


@pytest.mark.parametrize(
    ("usage", "taken"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, 7),
        ({"prompt_tokens": 3}, 3),
        ({}, 0),
        ({"prompt_tokens": -8, "completion_tokens": 9}, 9),
        ({"prompt_tokens": 9, "completion_tokens": -8}, 9),
        ({"prompt_tokens": "three", "completion_tokens": [4]}, 0),
        ({"prompt_tokens": 1.5, "completion_tokens": float("nan")}, 1),
        ({"prompt_tokens": 10**30, "completion_tokens": 1}, MAX_TOKENS + 1),
        ({"prompt_tokens": float("inf"), "completion_tokens": 10**30}, 2 * MAX_TOKENS),
    ],
)
def test_an_answer_takes_what_its_server_counted_within_bounds(usage: dict[str, Any], taken: int) -> None:
    clock = Clock()
    meter = clock.meter(Limits(tokens_per_day=4 * MAX_TOKENS))
    meter.spend(usage, clock.at)
    meter.spend(used(5), clock.at)
    standing = meter.standing()
    assert standing.tokens is not None
    assert standing.tokens.limit - standing.tokens.remaining == taken + 5


def test_no_fewer_than_no_tokens_are_left() -> None:
    clock = Clock()
    meter = clock.meter(Limits(requests_per_minute=5, tokens_per_minute=10))
    left = [meter.enter() for _ in range(2)]
    meter.spend(used(30), clock.at)
    assert left == [4, 3]
    for told in (meter.lines(3), meter.answer(b"", 3, b"")):
        assert b"remaining-requests: 3\r\n" in told
        assert b"remaining-tokens: 0\r\n" in told


def test_of_two_limits_on_tokens_the_lines_of_the_head_show_the_tighter_one() -> None:
    clock = Clock(DAY * 20_000 + 100.0)
    meter = clock.meter(Limits(tokens_per_minute=50, tokens_per_day=60))
    assert left_of(meter)[b"x-ratelimit-limit-tokens"] == b"50"
    meter.spend(used(40), clock.at)
    clock.pass_on(70)
    assert left_of(meter)[b"x-ratelimit-limit-tokens"] == b"60"


def test_tokens_of_an_answer_that_ends_long_after_its_request_count_from_its_end() -> None:
    clock = Clock()
    meter = clock.meter(Limits(tokens_per_minute=10))
    meter.enter()
    clock.pass_on(300)
    meter.spend(used(10), clock.at)
    clock.pass_on(50)
    with pytest.raises(LimitReached, match="10 tokens a minute"):
        meter.enter()
    clock.pass_on(12)
    meter.enter()


def test_the_headers_of_both_apis() -> None:
    standing = Standing(Left(60, 7, 3.2), Left(1000, 0, 7322.0))
    assert dict(openai_headers(standing, 0.0)) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"7",
        b"x-ratelimit-reset-requests": b"4s",
        b"x-ratelimit-limit-tokens": b"1000",
        b"x-ratelimit-remaining-tokens": b"0",
        b"x-ratelimit-reset-tokens": b"2h2m2s",
    }
    assert dict(anthropic_headers(standing, 0.0)) == {
        b"anthropic-ratelimit-requests-limit": b"60",
        b"anthropic-ratelimit-requests-remaining": b"7",
        b"anthropic-ratelimit-requests-reset": b"1970-01-01T00:00:04Z",
        b"anthropic-ratelimit-tokens-limit": b"1000",
        b"anthropic-ratelimit-tokens-remaining": b"0",
        b"anthropic-ratelimit-tokens-reset": b"1970-01-01T02:02:02Z",
    }
    assert [duration(seconds) for seconds in (0, 0.1, 60, 3600)] == ["0s", "1s", "1m0s", "1h0m0s"]


def test_limits_on_a_command_line() -> None:
    given = (
        "requests/minute=60",
        "tokens/minute=5",
        "tokens/day=7",
        "parallel=2",
        "models=a,b",
        "tiers=flex",
        "tier=flex",
    )
    limits = parse(given)
    assert limits == Limits(
        requests_per_minute=60, tokens_per_minute=5, tokens_per_day=7, parallel=2, models=("a", "b"), tiers=("flex",),
        tier="flex",
    )  # fmt: skip
    assert written(limits) == " ".join(given)
    assert (parse(()), written(None)) == (None, "-")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("rpm=3", "'rpm' is not a limit; the limits are: requests/minute,"),
        ("parallel", "parallel=: must be a whole number"),
        ("parallel=0", "must be a whole number from 1"),
        ("tokens/day=-1", "must be a whole number from 1"),
        ("models=", "name at least one"),
        ("tiers=fast", "'fast' is not a service tier"),
        ("tier=auto", "'auto' is not a service tier"),
    ],
)
def test_what_is_no_limit(wrong: str, said: str) -> None:
    with pytest.raises(ProviderInvalidRequest, match=said):
        parse((wrong,))


async def test_the_days_tokens_are_asked_once_and_again_after_a_failure() -> None:
    answers: list[int | Exception] = [OSError("no store"), 5]
    asked: list[str] = []

    async def used(key: str) -> int:
        asked.append(key)
        await asyncio.sleep(0)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    limiter = Limiter(used)
    principal = Principal(key="k", limits=Limits(tokens_per_day=9))
    failed = await asyncio.gather(*(limiter.meter(principal) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(each, OSError) for each in failed)
    meters = await asyncio.gather(*(limiter.meter(principal) for _ in range(3)))
    assert (len(asked), len({id(meter) for meter in meters})) == (2, 1)
    assert left_of(meters[0])[b"x-ratelimit-remaining-tokens"] == b"4"


async def nothing_today(key: str) -> int:
    return 0


async def two_limiters(limits: Limits) -> tuple[Limiter, Limiter, Principal]:
    return Limiter(nothing_today), Limiter(nothing_today), Principal(key="k", limits=limits)


@given(st.integers(1, 9), st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
async def test_gateways_that_tell_each_other_hold_to_one_limit(maximum: int, steps: list[tuple[bool, bool]]) -> None:
    """A request at one of them, and whether both tell then. None is counted twice, and none is forgotten."""
    one, two, principal = await two_limiters(Limits(requests_per_minute=maximum))
    meters = await one.meter(principal), await two.meter(principal)
    let_in, untold = [0, 0], [0, 0]
    for at_first, tell in steps:
        at = 0 if at_first else 1
        try:
            meters[at].enter()
        except LimitReached:
            assert sum(let_in) - untold[1 - at] >= maximum
        else:
            assert sum(let_in) - untold[1 - at] < maximum
            let_in[at] += 1
            untold[at] += 1
        if tell:
            for name, here, there in (("one", one, two), ("two", two, one)):
                there.add_remote_usage(name, here.unreported_usage(whole=False), whole=False)
            assert one.unreported_usage(whole=False) == two.unreported_usage(whole=False) == {}
            untold = [0, 0]


async def test_requests_at_a_time_count_wherever_they_are_until_their_gateway_is_gone() -> None:
    one, two, principal = await two_limiters(Limits(parallel=2))
    here, there = await one.meter(principal), await two.meter(principal)
    here.enter()
    two.add_remote_usage("one", one.unreported_usage(whole=False), whole=False)
    there.enter()
    with pytest.raises(LimitReached, match="2 requests at a time"):
        there.enter()
    assert one.unreported_usage(whole=False) == {}
    two.add_remote_usage("one", told := one.unreported_usage(whole=True), whole=True)
    assert told == {"k": (0, 0, 1)}
    with pytest.raises(LimitReached):
        there.enter()
    here.leave()
    two.add_remote_usage("one", told := one.unreported_usage(whole=False), whole=False)
    assert told == {"k": (0, 0, 0)}
    there.enter()

    one.add_remote_usage("two", two.unreported_usage(whole=False), whole=False)
    with pytest.raises(LimitReached):
        here.enter()
    one.add_remote_usage("two", {}, whole=True)
    here.enter()


async def test_a_key_that_comes_here_later_has_used_what_others_told() -> None:
    one, two, principal = await two_limiters(Limits(requests_per_minute=2, tokens_per_minute=10))
    meter = await one.meter(principal)
    meter.enter()
    meter.spend(used(10), 0.0)
    two.add_remote_usage("one", one.unreported_usage(whole=False), whole=False)
    standing = (await two.meter(principal)).standing()
    assert standing.requests is not None
    assert standing.tokens is not None
    assert (standing.requests.remaining, standing.tokens.remaining) == (1, 0)


# A gateway


def config_of(state: Path) -> Config:
    echo, other = (Model(name=name, runtime="echo") for name in ("echo", "other"))
    embedding = Model(name="vectors", runtime="openai", base_url="http://127.0.0.1:9", role="embedding")
    models = {model.name: model for model in (echo, other, embedding)}
    return Config(source=state / "config.yaml", active_model="echo", models=models, state_dir=state)


def key_of(state: Path, *limits: str) -> str:
    return KeyFile(state / FILE).add(scopes=["models"], limits=parse(limits))[1]


@contextmanager
def gateway(state: Path, http: str = FAST) -> Iterator[str]:
    with serve(build(config_of(state)), lifespan="on", http=http) as url:
        yield url


@pytest.fixture(params=[FAST, "httptools"])
def http(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=PATIENCE, limits=httpx.Limits(max_connections=50)) as client:
        yield client


async def test_fifty_clients_on_one_key_get_exactly_its_requests(
    tmp_path: Path, http: str, client: httpx.AsyncClient
) -> None:
    key, free = key_of(tmp_path, "requests/minute=120"), KeyFile(tmp_path / FILE).add()[1]
    seen: list[httpx.Response] = []
    with gateway(tmp_path, http) as url:

        async def one(stream: bool) -> None:
            for _ in range(6):
                body = {**SAY, "stream": stream}
                seen.append(
                    await client.post(
                        f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
                    )
                )

        await asyncio.gather(*(one(bool(at % 2)) for at in range(50)))
        other = await client.post(f"{url}/v1/chat/completions", json=SAY, headers={"authorization": f"Bearer {free}"})
    assert Counter(each.status_code for each in seen) == {200: 120, 429: 180}
    left = sorted(int(each.headers["x-ratelimit-remaining-requests"]) for each in seen if each.status_code == 200)
    assert left == [*range(120)]
    for each in seen:
        if each.status_code == 429:
            assert each.json()["error"]["code"] == "rate_limit_exceeded"
            assert 1 <= int(each.headers["retry-after"]) <= 61
            assert each.headers["x-ratelimit-remaining-requests"] == "0"
    assert other.status_code == 200
    assert not [name for name in other.headers if "ratelimit" in name]


async def test_requests_at_a_time_on_every_api_with_its_own_headers(tmp_path: Path, client: httpx.AsyncClient) -> None:
    key = key_of(tmp_path, "requests/minute=6", "models=echo,vectors")
    head = {"authorization": f"Bearer {key}"}
    message = {"model": "echo", "max_tokens": 9, "messages": SAY["messages"]}
    asked: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/chat/completions", SAY, "x-ratelimit-remaining-requests"),
        ("/v1/messages", message, "anthropic-ratelimit-requests-remaining"),
        ("/v1/responses", {"model": "echo", "input": "Hi", "store": False}, "x-ratelimit-remaining-requests"),
        ("/api/chat", {**SAY, "stream": False}, "x-ratelimit-remaining-requests"),
        ("/v1/embeddings", {"model": "vectors", "input": "a"}, "x-ratelimit-remaining-requests"),
        ("/v1/messages/count_tokens", message, "anthropic-ratelimit-requests-remaining"),
    ]
    with gateway(tmp_path) as url:
        for left, (path, body, name) in zip(range(5, -1, -1), asked, strict=True):
            answer = await client.post(url + path, json=body, headers=head)
            assert (path, answer.headers[name]) == (path, str(left)), answer.text
        listed = await client.get(f"{url}/v1/models", headers=head)
        assert listed.status_code == 200
        for path, body, name in asked:
            refused = await client.post(url + path, json=body, headers=head)
            assert (path, refused.status_code, refused.headers[name]) == (path, 429, "0")
            assert int(refused.headers["retry-after"]) >= 1
            error = refused.json()["error"]
            said = error if isinstance(error, str) else error["message"]
            assert "6 requests a minute are its limit" in said
            if path == "/v1/messages":
                assert (refused.json()["type"], error["type"]) == ("error", "rate_limit_error")


async def test_refused_requests_are_in_the_log_whatever_their_api(
    tmp_path: Path, http: str, client: httpx.AsyncClient
) -> None:
    limited, free = (
        {"authorization": f"Bearer {key}"}
        for key in (key_of(tmp_path, "requests/minute=1"), KeyFile(tmp_path / FILE).add()[1])
    )
    small = {**SAY, "max_tokens": 9}
    large = {**small, "messages": [{"role": "user", "content": "x" * 100_000}]}
    config = replace(config_of(tmp_path), server=Server(max_body_bytes=10_000))
    paths = ("/v1/chat/completions", "/v1/chat/completions?x=1", "/v1/messages")
    with serve(build(config), lifespan="on", http=http) as url:
        assert (await client.post(url + paths[0], json=small, headers=limited)).status_code == 200
        for headers, body, status in (({}, small, 401), (limited, small, 429), (free, large, 413)):
            for path in paths:
                assert (await client.post(url + path, json=body, headers=headers)).status_code == status, path
        rows = (await client.get(f"{url}/-/requests", headers=free)).json()["requests"]
    found = [(row["api"], row["error"]["status"] if row["error"] else 200) for row in reversed(rows)]
    assert found == [("chat", 200), *((api, status) for status in (429, 413) for api in ("chat", "chat", "messages"))]


async def test_models_that_a_key_may_not_use(tmp_path: Path, client: httpx.AsyncClient) -> None:
    head = {"authorization": f"Bearer {key_of(tmp_path, 'models=other')}"}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", SAY),
        ("/v1/chat/completions", {**SAY, "stream": True}),
        ("/v1/messages", {"model": "echo", "max_tokens": 9, "messages": SAY["messages"]}),
        ("/v1/messages/count_tokens", {"model": "echo", "messages": SAY["messages"]}),
        ("/v1/responses", {"model": "echo", "input": "Hi"}),
        ("/v1/completions", {"model": "echo", "prompt": "a"}),
        ("/v1/embeddings", {"model": "vectors", "input": "a"}),
        ("/api/chat", {**SAY, "stream": False}),
        ("/api/generate", {"model": "echo"}),
        ("/api/embed", {"model": "vectors", "input": "a"}),
    ]
    with gateway(tmp_path) as url:
        for path, body in asked:
            refused = await client.post(url + path, json=body, headers=head)
            assert (path, refused.status_code) == (path, 403), refused.text
            assert "may not use the model" in refused.text
        assert (await client.get(f"{url}/v1/models/echo/ready", headers=head)).status_code == 403
        allowed = await client.post(f"{url}/v1/chat/completions", json={**SAY, "model": "other"}, headers=head)
        assert allowed.status_code == 200


async def test_the_days_tokens_outlast_a_restart(tmp_path: Path, client: httpx.AsyncClient) -> None:
    """An answer of echo takes 3 tokens and 3 more."""
    head = {"authorization": f"Bearer {key_of(tmp_path, 'tokens/day=11')}"}
    left: list[int] = []
    for _ in range(2):
        with gateway(tmp_path) as url:
            answer = await client.post(f"{url}/v1/chat/completions", json=SAY, headers=head)
            assert answer.status_code == 200
            assert answer.json()["usage"]["total_tokens"] == 6
            left.append(int(answer.headers["x-ratelimit-remaining-tokens"]))
    with gateway(tmp_path) as url:
        refused = await client.post(f"{url}/v1/chat/completions", json=SAY, headers=head)
    assert (left, refused.status_code) == ([11, 5], 429)
    assert "11 tokens a day are its limit" in refused.text


async def test_a_client_that_leaves_has_used_its_tokens_all_the_same(tmp_path: Path, client: httpx.AsyncClient) -> None:
    """Without `include_usage`, no engine is asked for its counts."""
    head = {"authorization": f"Bearer {key_of(tmp_path, 'tokens/minute=20')}"}
    body = {**SAY, "stream": True, "messages": [{"role": "user", "content": "word " * 30}]}
    with gateway(tmp_path) as url:
        first = await client.post(f"{url}/v1/chat/completions", json=body, headers=head)
        second = await client.post(f"{url}/v1/chat/completions", json=body, headers=head)
    assert (first.status_code, second.status_code) == (200, 429)


def test_the_sdks_know_the_refusal(tmp_path: Path) -> None:
    key = key_of(tmp_path, "requests/minute=1")
    with gateway(tmp_path) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
            raw = client.chat.completions.with_raw_response.create(
                model="echo", messages=[{"role": "user", "content": "Hi"}]
            )
            assert raw.headers["x-ratelimit-limit-requests"] == "1"
            with pytest.raises(openai.RateLimitError) as refused:
                client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "Hi"}])
            assert refused.value.code == "rate_limit_exceeded"
        with (
            anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as other,
            pytest.raises(anthropic.RateLimitError) as refused_too,
        ):
            other.messages.create(model="echo", max_tokens=5, messages=[{"role": "user", "content": "Hi"}])
        assert refused_too.value.response.headers["anthropic-ratelimit-requests-remaining"] == "0"


def test_a_key_with_limits_is_for_models_alone(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / FILE)
    for scope in ("*", "rooms"):
        with pytest.raises(ProviderInvalidRequest, match="can't have the scope"):
            file.add(scopes=[scope], limits=Limits(parallel=1))
    entry, _ = file.add(scopes=["models"], limits=Limits(parallel=1, models=("a",)))
    assert file.read() == (entry,)
    assert json.loads(file.path.read_text())["keys"][0]["limits"] == {"parallel": 1, "models": ["a"]}

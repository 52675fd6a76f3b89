"""The one back-off: what it bounds, and that jitter never shortens what a server asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Backoff, ProviderRateLimit

seconds = st.floats(0.001, 100)


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        pytest.param(Backoff(0.25, 5.0), [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0], id="doubled"),
        pytest.param(Backoff(0.02, 0.03, growth=1.25), [0.0, 0.02, 0.025, 0.03, 0.03], id="growing slowly"),
        pytest.param(Backoff(3.0, 2.0), [0.0, 2.0, 2.0], id="the longest from the first"),
    ],
)
def test_each_failure_lengthens_the_delay_up_to_the_longest(backoff: Backoff, delays: list[float]) -> None:
    assert [backoff.delay(failures) for failures in range(len(delays))] == pytest.approx(delays)
    assert backoff.delay(10**9) == backoff.longest


@given(seconds, seconds, st.floats(0, 1), st.integers(1, 100))
def test_jitter_takes_its_share_and_no_more(first: float, longest: float, jitter: float, failures: int) -> None:
    whole = Backoff(first, longest).delay(failures)
    slack = 1e-9 * whole
    assert whole * (1 - jitter) - slack <= Backoff(first, longest, jitter=jitter).delay(failures) <= whole + slack


@given(seconds, seconds, st.integers(1, 20), st.floats(0, 1000))
def test_jitter_never_shortens_what_the_server_asks_for(
    first: float, longest: float, failures: int, asked: float
) -> None:
    assert Backoff(first, longest, jitter=1.0).delay(failures, asked) >= asked


@pytest.mark.parametrize(("after", "header"), [(0.1, b"1"), (1.0, b"1"), (2.4, b"3"), (30.0, b"30")])
def test_the_header_never_names_an_earlier_time(after: float, header: bytes) -> None:
    assert ProviderRateLimit("busy", retry_after=after).headers() == [
        (b"x-should-retry", b"true"),
        (b"retry-after", header),
    ]

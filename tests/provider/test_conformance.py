"""OpenArmature's own fixtures decide whether the provider keeps the contract."""

from __future__ import annotations

import pytest

from .conformance import SEED_FIXTURES, Case, Unclaimed, further_cases, run, seed_cases

SEED, FURTHER = seed_cases(), further_cases()


@pytest.mark.skipif(not SEED, reason=f"the fixtures are not beside the checkout ({'/'.join(SEED_FIXTURES.parts[-3:])})")
def test_the_suite_of_the_specified_version_is_whole() -> None:
    assert (len({case.fixture for case in SEED}), len(SEED)) == (31, 55)
    assert [case.id for case in SEED if case.listed] == []


@pytest.mark.parametrize("case", SEED + FURTHER, ids=lambda case: case.id)
async def test_case(case: Case) -> None:
    try:
        await run(case)
    except Unclaimed as reason:
        if case in SEED:
            raise
        pytest.skip(f"not claimed: {reason}")
    if case.listed:
        pytest.skip(f"the rest holds; no harness can check from outside: {', '.join(case.listed)}")

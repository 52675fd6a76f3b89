"""OpenArmature's own fixtures decide whether the providers keep the contract."""

from __future__ import annotations

import pytest

from .fixtures import NO_FURTHER, SEED_FIXTURES, Case, Unclaimed, further_cases, seed_cases
from .table import outcome, run

SEED, FURTHER = seed_cases(), further_cases()
WHERE = f"not beside the checkout ({'/'.join(SEED_FIXTURES.parts[-3:])}), and OPENARMATURE_FIXTURES names no folder"


@pytest.mark.skipif(not SEED, reason=f"the fixtures are {WHERE}")
async def test_the_suite_of_the_first_version_is_whole() -> None:
    assert (len({case.fixture for case in SEED}), len(SEED)) == (31, 55)
    assert [case.id for case in SEED if await outcome(case) != "passed"] == []


@pytest.mark.skipif(not FURTHER, reason=NO_FURTHER)
async def test_of_a_further_version_nothing_is_unclaimed_or_only_listed() -> None:
    assert [case.id for case in FURTHER if await outcome(case) != "passed"] == []


@pytest.mark.parametrize("case", SEED + FURTHER, ids=lambda case: case.id)
async def test_case(case: Case) -> None:
    try:
        listed = await run(case)
    except Unclaimed as reason:
        pytest.skip(f"not claimed: {reason}")
    if listed:
        pytest.skip(f"the rest holds; no harness can check from outside: {', '.join(listed)}")

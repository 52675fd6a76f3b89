"""The variables that an engine's process gets."""

from __future__ import annotations

import os

import pytest

from gateway.engines.environment import for_engine, inherited


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ({"PATH": "/bin", "HOME": "/home/ann", "LC_ALL": "C", "CUDA_VISIBLE_DEVICES": "1"}, True),
        ({"HF_HUB_TOKEN": "x", "OMP_SECRET": "x", "AWS_REGION": "eu", "CTXGATE_KEY": "x"}, False),
        ({}, True),
    ],
    ids=["known", "strange or secret", "none"],
)
def test_only_known_variables_pass(given: dict[str, str], passed: bool) -> None:
    assert inherited(environ=given) == (given if passed else {})


def test_a_variable_that_was_asked_for_passes_whatever_its_name() -> None:
    assert inherited(["MY_KEY", "ABSENT"], {"MY_KEY": "x", "OTHER_KEY": "y"}) == {"MY_KEY": "x"}


def test_pythons_path_leads_to_the_same_folders_from_any_other() -> None:
    found = inherited(environ={"PYTHONPATH": os.pathsep.join(["/a", "", "b"])})
    assert found == {"PYTHONPATH": os.pathsep.join(["/a", os.path.abspath("b")])}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"GOMP_SPINCOUNT": "10000"}),
        ({"GOMP_SPINCOUNT": "5"}, {"GOMP_SPINCOUNT": "5"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_an_engines_threads_sleep_soon_unless_the_user_says_how_they_wait(
    given: dict[str, str], found: dict[str, str]
) -> None:
    assert for_engine(environ=given) == found

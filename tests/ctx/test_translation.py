"""An agent's errors: the errno that the same error has on a model."""

from __future__ import annotations

import pytest

from gateway.errors import CATEGORIES, GatewayError
from gateway.features.ctx.agents.translate import error_code
from gateway.features.ctx.errors import code


@pytest.mark.parametrize("finer", [None, "context_length_exceeded", "queue_full"])
@pytest.mark.parametrize("kind", CATEGORIES.values(), ids=list(CATEGORIES))
def test_a_category_has_one_errno(kind: type[GatewayError], finer: str | None) -> None:
    error = kind("no", code=finer)
    assert error_code({"message": "no", "code": error.code, "category": error.category}) == code(error)


@pytest.mark.parametrize(
    ("finer", "expected"),
    [
        *((kind.default_code, code(kind("no"))) for kind in CATEGORIES.values()),
        ("context_length_exceeded", "EINVAL"),
        ("internal_error", "EIO"),
        ("turn_cut_off", "EINTR"),
        ("something_else", "EPROTO"),
    ],
)
def test_rooms_of_earlier_versions_recorded_the_code_alone(finer: str, expected: str) -> None:
    assert error_code({"message": "no", "code": finer}) == expected

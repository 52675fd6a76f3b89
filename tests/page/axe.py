"""axe-core finds what keeps people from a page who use no mouse, or can't see it well."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.surroundings import installed
from tests.page.browser import Page

FILE = installed() / "node/node_modules/axe-core/axe.min.js"
"""scripts/clients installs it where there is npm."""


def check(page: Page, subtests: pytest.Subtests, place: str) -> None:
    """It finds nothing at the place that the page shows now. Where it isn't installed, the place counts as skipped."""
    with subtests.test("axe", place=place):
        if not FILE.is_file():
            pytest.skip("axe-core is not installed: scripts/clients does it where there is npm")
        assert _violations(page) == []


def _violations(page: Page) -> list[Any]:
    """The rule, and the first element that breaks it."""
    page.js(f"{FILE.read_text('utf-8')};0")
    found: list[Any] = page.js("axe.run(document).then(all => all.violations.map(one => [one.id, one.nodes[0].html]))")
    return found

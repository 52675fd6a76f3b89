"""axe-core finds what keeps people from a page who use no mouse, or can't see it well."""

from __future__ import annotations

from typing import Any

from tests.clients.surroundings import installed
from tests.page.browser import Page

FILE = installed() / "node/node_modules/axe-core/axe.min.js"
"""scripts/clients installs it where there is npm."""


def violations(page: Page) -> list[Any]:
    """Of what the page shows now: the rule, and the first element that breaks it. None where axe isn't installed."""
    if not FILE.is_file():
        return []
    page.js(f"{FILE.read_text('utf-8')};0")
    found: list[Any] = page.js("axe.run(document).then(all => all.violations.map(one => [one.id, one.nodes[0].html]))")
    return found

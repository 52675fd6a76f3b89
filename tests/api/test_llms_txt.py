"""`/llms.txt` names every operation, once, with what it does."""

from __future__ import annotations

import re

from gateway.features.descriptions.llms_txt import ABOUT, text
from gateway.features.descriptions.openapi import description


def test_it_names_every_operation() -> None:
    page = text()
    assert page.startswith("# ctxgate\n\n> ")
    named = re.findall(r"^- \[([A-Z]+) (\S+)\]\(/openapi\.json\): (.+)$", page, re.MULTILINE)
    operations = [
        (method.upper(), path, operation["summary"])
        for path, item in description()["paths"].items()
        for method, operation in item.items()
        if isinstance(operation, dict)
    ]
    assert sorted(named) == sorted(operations)
    assert [f"## {tag[0].upper()}{tag[1:]}" for tag in (*ABOUT, "llama.cpp", "rooms")] == re.findall(
        r"^## .+$", page, re.MULTILINE
    )

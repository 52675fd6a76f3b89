"""Texts long enough to be saved, and saved prompts of them."""

from __future__ import annotations

from gateway.prompts.blocks import chain
from gateway.prompts.index import Saved

WORTH = 4
A, B, C = ("".join(f"{letter}{number} " for number in range(1000)) for letter in "abc")


def saved(name: str, text: str, **more: object) -> Saved:
    begins = chain(text)
    settings = {"key": "k", "model": "m", "size": 10, "sha256": "", "saved": 0.0, "used": 0.0, "sure": True, **more}
    return Saved(name=name, tokens=len(text) // 4, chain=begins, **settings)  # type: ignore[arg-type]

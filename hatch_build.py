"""Adds to wheels what the checkout keeps outside the package: the default configuration and the test model.

Not to an editable installation, which reads them in the checkout.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = ("config.yaml", "test/ctxgate-test-tools.gguf")


class Shipped(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            build_data["force_include"] |= {f"_models/{name}": f"gateway/shipped/{name}" for name in SHIPPED}

"""ctxgate: one OpenAI-compatible endpoint on localhost for local models."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

__version__ = "0.1.0"

FORMER = {
    "agent": "agents",
    "cluster": "cluster",
    "ctx": "ctx",
    "inventory": "models.inventory",
    "model_test": "evaluation.model_test",
    "pull": "models.pull",
    "rooms": "rooms",
    "service": "service",
    "tools": "agents.tools",
    "tune": "evaluation.tune",
}
"""Former packages → where they are below `gateway.features`. Imports by the former names give the same modules."""


class _FormerNames:
    """Finds them, before Python would load their modules a second time."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        first, _, rest = name.partition(".")
        if first != "gateway" or (package := rest.partition(".")[0]) not in FORMER:
            return None
        loader = _SameModule(f"gateway.features.{FORMER[package]}{rest.removeprefix(package)}")
        return ModuleSpec(name, loader)  # type: ignore[arg-type]  # typeshed asks for a base class; Python does not


class _SameModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run. Only its spec has to be its own again."""
        module.__spec__ = self._spec


sys.meta_path.insert(0, _FormerNames)

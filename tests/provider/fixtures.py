"""OpenArmature's fixtures: where they are, and what they hold. They are read as data, and never copied.

Three kinds of directive: those that the harnesses check; those of parts of the specification that the project doesn't
claim (Unclaimed, a visible skip); and unknown ones (UnknownDirective, a failure).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SEED_FIXTURES = Path(__file__).parents[3] / "shared" / "conformance" / "openarmature"
"""The fixtures of the version that the project began with: 31 files of llm-provider."""
NO_FURTHER = "OPENARMATURE_FIXTURES names no folder with the fixtures of a further version"
CAPABILITIES = ("llm-provider", "retrieval-provider")


class UnknownDirective(AssertionError):
    """The fixture asks for something that the harness has never heard of."""


class Unclaimed(Exception):
    """The fixture belongs to a part of the specification that the project doesn't claim to implement."""


@dataclass(frozen=True)
class Case:
    """One independent run: the calls of a file, or one entry of its `cases`."""

    fixture: str
    name: str
    file: dict[str, Any]
    entry: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.fixture}:{self.name}" if self.name else self.fixture

    @property
    def retrieval(self) -> bool:
        """Whether it belongs to retrieval-provider."""
        return "nodes" in self.entry


def load(folder: Path) -> list[Case]:
    """The cases of a folder with fixtures, or of the published repository's folder."""
    roots = [found for name in CAPABILITIES for found in folder.glob(f"**/{name}/conformance") if found.is_dir()]
    cases = []
    for path in sorted(path for root in roots or [folder] for path in root.rglob("*.yaml")):
        document = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)
        if not isinstance(document, dict):
            raise UnknownDirective(f"{path.name} holds no mapping")
        entries = document.get("cases")
        shared = {key: document[key] for key in ("mock_provider",) if key in document}
        if entries is None:
            cases.append(Case(path.stem, "", document, {k: v for k, v in document.items() if k != "mapping"}))
        else:
            cases += [Case(path.stem, entry["name"], document, {**shared, **entry}) for entry in entries]
    return cases


def seed_cases() -> list[Case]:
    return load(SEED_FIXTURES) if SEED_FIXTURES.is_dir() else []


def further_cases() -> list[Case]:
    """Of the folder that OPENARMATURE_FIXTURES names: another version, or the whole published repository."""
    folder = os.environ.get("OPENARMATURE_FIXTURES")
    return load(Path(folder)) if folder else []


def known(block: Mapping[str, Any], allowed: Iterable[str], where: str) -> None:
    if unknown := sorted(set(block) - set(allowed)):
        raise UnknownDirective(f"{where}: unknown directive {', '.join(map(repr, unknown))}")


def literal(expected: Any, actual: Any, where: str) -> None:
    """Every key and no other. "*" stands for any text; arguments are the same text of JSON if they mean the same."""
    if expected == "*":
        assert isinstance(actual, str), where
        assert actual, where
    elif isinstance(expected, dict):
        assert isinstance(actual, dict), where
        assert actual.keys() == expected.keys(), where
        for key, value in expected.items():
            if key == "arguments" and isinstance(value, str):
                assert isinstance(actual[key], str), where
                assert json.loads(actual[key]) == json.loads(value), where
            else:
                literal(value, actual[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert isinstance(actual, list), where
        assert len(actual) == len(expected), where
        for index, value in enumerate(expected):
            literal(value, actual[index], f"{where}[{index}]")
    else:
        assert type(actual) is type(expected), where
        assert actual == expected, where


def subset(expected: Any, actual: Any, where: str) -> None:
    if isinstance(expected, dict):
        assert isinstance(actual, Mapping), where
        for key, value in expected.items():
            assert key in actual, f"{where}.{key}"
            subset(value, actual[key], f"{where}.{key}")
    else:
        assert actual == expected, where

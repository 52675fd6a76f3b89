"""What `ctxgate add` writes for models of which it is known when they should call."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from gateway.features.models.inventory import calls
from gateway.features.models.inventory.add import Addition
from gateway.features.models.inventory.facts import Facts, of_path
from normalizers import Detection
from tests.support.gguf_files import gguf

KNOWN = sorted(calls.KNOWN)
KEYS = {"call_threshold", "tool_examples", "parallel_tool_calls"}


def facts(basename: str, size: str, finetune: str = "Instruct") -> Facts:
    found = Detection("hermes", "chat template", ("<tool_call>",))
    return Facts(basename=basename, parameters=size, finetune=finetune, dialect=found, template=True, tools=True)


def entry(found: Facts, runtime: str = "llama.cpp") -> dict[str, object]:
    made = Addition("there", "it", runtime, found, ())
    return dict(yaml.safe_load(made.entry())["it"])


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("finetune", ["Instruct", "Instruct-GGUF", "instruct-awq"])
def test_a_known_model_gets_its_choice(name: tuple[str, str], finetune: str) -> None:
    made, known = entry(facts(*name, finetune)), calls.KNOWN[name]
    assert made["call_threshold"] == known.threshold
    assert made.get("tool_examples", []) == [*known.examples]
    assert made.get("parallel_tool_calls", True) is not known.one


@pytest.mark.parametrize(
    "found",
    [
        facts("Qwen2.5-Coder", "0.5B", ""),
        facts("Qwen2.5-Coder", "0.5B", "Base"),
        facts("Qwen2.5-Coder", "7B"),
        facts("Qwen2.5", "0.5B"),
        facts("", ""),
        replace(facts(*KNOWN[0]), dialect=None),
        replace(facts(*KNOWN[0]), role="embedding"),
    ],
)
def test_another_one_decides_by_itself(found: Facts) -> None:
    assert not KEYS & entry(found).keys()


@pytest.mark.parametrize("runtime", ["mlx", "ollama", "openai"])
def test_elsewhere_nothing_can_be_held_to_it(runtime: str) -> None:
    assert not KEYS & entry(facts(*KNOWN[0]), runtime).keys()


def test_the_file_says_which_model_it_is(tmp_path: Path) -> None:
    named = {"general.basename": "Qwen2.5-Coder", "general.size_label": "0.5B", "general.finetune": "Instruct-GGUF"}
    found = of_path(gguf(tmp_path / "m.gguf", 1000, **named))
    assert (found.basename, found.parameters, found.finetune) == tuple(named.values())

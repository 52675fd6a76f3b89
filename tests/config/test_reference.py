"""`_models/config.yaml` and its JSON Schema agree with the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway.config import Engines, Model, Prompts, Residence, Runtime, Server, load, schema
from gateway.config.file import (
    AdapterEntry,
    BatchesEntry,
    CtxEntry,
    CtxModelEntry,
    DraftEntry,
    EnginesEntry,
    Entry,
    File,
    GroupEntry,
    LogEntry,
    MCPEntry,
    MCPServerEntry,
    ModelEntry,
    PromptsEntry,
    PullEntry,
    RoomMountEntry,
    RoomsEntry,
    RoomTemplateEntry,
    RoomToolsEntry,
    RopeEntry,
    RuntimeEntry,
    ServerEntry,
)
from gateway.config.values import (
    Batches,
    Ctx,
    CtxModel,
    Log,
    MCPServer,
    RoomMount,
    Rooms,
    RoomTemplate,
    RoomTools,
)
from tests.config.test_load import LOCALCOWORK, OURS
from tests.config.test_problems import CASES, Case

FOLDER = Path(__file__).parents[2] / "_models"
TEXT = (FOLDER / "config.yaml").read_text(encoding="utf-8")
REFERENCE = "".join(line.removeprefix("#>").removeprefix(" ") + "\n" for line in TEXT.splitlines() if line[:2] == "#>")


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(schema.json_schema())
    return jsonschema.Draft202012Validator(schema.json_schema())


def test_the_published_schema_is_current() -> None:
    """After a change: `ctxgate check --schema > _models/config.schema.json`"""
    assert (FOLDER / "config.schema.json").read_text(encoding="utf-8") == schema.text()
    assert TEXT.startswith("# yaml-language-server: $schema=config.schema.json\n")


def test_an_editor_offers_the_roles() -> None:
    """LocalCowork's app has a key of the same name; its values are ignored."""
    ours, nothing, theirs = schema.json_schema()["$defs"]["ModelEntry"]["properties"]["role"]["anyOf"]
    assert (ours["enum"], nothing["type"], theirs["deprecated"]) == (["chat", "embedding", "rerank"], "null", True)


def test_the_default_file_loads_without_a_note() -> None:
    config = load(FOLDER / "config.yaml", {})
    assert config.notes == ()
    assert config.active_model == "smollm2-135m-instruct"
    assert config.server == Server()
    for name, model in config.models.items():
        assert model.runtime == "echo" or model.pull or model.path == FOLDER / "test" / f"{name}.gguf", name


@pytest.mark.parametrize(
    "text", [TEXT, REFERENCE, LOCALCOWORK, OURS], ids=["default", "reference", "LocalCowork", "ours"]
)
def test_the_schema_accepts_what_loads(text: str, validator: Any) -> None:
    assert [error.message for error in validator.iter_errors(yaml.safe_load(text))] == []


SEEN_BY_THE_SCHEMA = re.compile(
    r"unknown key|has no (runtime|active_model|models)|isn't (a|text|allowed|of the right)|is out of range"
    r"|is not a (runtime|tool-call format)|is not a valid model name|a secret (is|can't)"
)
BEYOND_A_SCHEMA = {
    "key that YAML reads as a number",
    "key that YAML reads as true",
    "not a number",
    "not a URL",
    "URL with a bad port",
    "variable with a wrong value isn't shown",
    "not a variable",
    "role misspelt",
}
REFUSED = [
    case for case in CASES if SEEN_BY_THE_SCHEMA.search(case.problems[0][2]) and case.name not in BEYOND_A_SCHEMA
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_the_schema_refuses_what_load_refuses(case: Case, validator: Any) -> None:
    assert list(validator.iter_errors(yaml.safe_load(case.text)))


ONE_OF: dict[type[Entry], set[str]] = {
    PullEntry: {"package", "ollama"},
    ModelEntry: {"replicas", "nodes", "call_threshold", "placement", "tensor_split"},
    File: {"cluster"},
}
"""Alternatives to the keys shown, what a cluster needs and what the defaults rule out: the reference has them in
comments."""


def test_the_reference_loads_and_has_every_key(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(REFERENCE, encoding="utf-8")
    assert load(file, {}).notes == ()
    data = yaml.safe_load(REFERENCE)
    model = data["models"]["example"]
    entries: list[tuple[dict[str, Any], type[Entry]]] = [
        (data, File),
        (data["server"], ServerEntry),
        (data["log"], LogEntry),
        (data["prompts"], PromptsEntry),
        (data["engines"], EnginesEntry),
        (data["engines"]["groups"]["large"], GroupEntry),
        (model, ModelEntry),
        (model["pull"], PullEntry),
        (model["rope"], RopeEntry),
        (model["adapters"][0] | model["adapters"][1], AdapterEntry),
        (data["rooms"], RoomsEntry),
        (data["rooms"], RoomsEntry),
        (data["rooms"]["tools"], RoomToolsEntry),
        (data["rooms"]["mounts"]["docs"], RoomMountEntry),
        (data["rooms"]["templates"]["reader"], RoomTemplateEntry),
        (data["batches"], BatchesEntry),
        (data["mcp"], MCPEntry),
        (data["mcp"]["servers"]["time"] | data["mcp"]["servers"]["docs"], MCPServerEntry),
        (data["ctx"], CtxEntry),
        (data["ctx"]["models"]["example"], CtxModelEntry),
    ]
    for keys, entry in entries:
        missing = set(entry.model_fields) - set(keys)
        assert missing == (ONE_OF.get(entry, set())), entry
    for key in set[str]().union(*ONE_OF.values()):
        assert re.search(rf"^ *# {key}:", REFERENCE, re.MULTILINE)
    drafts = REFERENCE[REFERENCE.index(" draft: ") : REFERENCE.index(" adapters:")]
    assert all(f"{key}: " in drafts for key in DraftEntry.model_fields)
    heading = next(line for line in REFERENCE.splitlines() if line.startswith("runtimes:"))
    following = REFERENCE[REFERENCE.index(heading) :].split("\n  mlx:")
    said = following[0] + following[1].splitlines()[0]
    assert all(key in said for key in RuntimeEntry.model_fields)


def test_the_reference_s_defaults_are_the_code_s() -> None:
    """Each line `key: value  # default...` shows the real default, and every default has such a line."""
    shown = {
        match[1]: yaml.safe_load(match[2])
        for match in re.finditer(r"^ *(\w+): (.*?) +# default\b", REFERENCE, re.MULTILINE)
    }
    actual = {
        name: default
        for value in (
            Model,
            Runtime,
            Residence,
            Server,
            Log,
            Prompts,
            Engines,
            Ctx,
            CtxModel,
            Rooms,
            RoomMount,
            RoomTemplate,
            RoomTools,
            Batches,
            MCPServer,
        )
        for name, default in schema.defaults(value).items()
        if default != ()
    }
    assert shown == actual


def test_the_reference_names_every_choice() -> None:
    definitions = json.loads(schema.text())["$defs"]["ModelEntry"]["properties"]
    for key in ("tool_prompt", "capabilities", "runtime"):
        choices = re.findall(r'"enum": (\[[^]]*\])', json.dumps(definitions[key]))
        for choice in json.loads(choices[0]):
            assert re.search(rf"\b{re.escape(choice)}\b", REFERENCE), choice

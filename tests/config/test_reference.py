"""`_models/config.yaml` and its JSON Schema agree with the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import yaml

from gateway.config import Engines, Model, Prompts, Residence, Role, Runtime, Server, load, schema
from gateway.config.file import Entry, Keys, keys_of
from gateway.config.sections import file_keys
from gateway.config.values import MODEL_KEYS, RUNTIME_KEYS, Adapter, Draft, Group, Log, Pull, Rope
from gateway.features.agents.settings import MCP, MCPServer, RoomMount, Rooms, RoomTemplate, RoomTools
from gateway.features.batches.settings import Batches
from gateway.features.ctx.settings import Ctx, CtxModel
from gateway.features.media.settings import Media
from tests.config.mistakes import CASES, Case
from tests.support.configurations import LOCALCOWORK, OURS

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
    ours, several, nothing, theirs = schema.json_schema()["$defs"]["Model"]["properties"]["role"]["anyOf"]
    assert ours["enum"] == several["items"]["enum"] == [*get_args(Role)]
    assert (several["minItems"], nothing["type"], theirs["deprecated"]) == (1, "null", True)


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
    r"|is not a (runtime|role|tool-call format)|is not a valid model name|a secret (is|can't)"
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


ONE_OF: dict[str, set[str]] = {
    "Pull": {"package", "ollama"},
    "Model": {
        "replicas",
        "nodes",
        "call_threshold",
        "describe_with",
        "transcribe_with",
        "speak_with",
        "placement",
        "tensor_split",
    },
    "File": {"cluster"},
}
"""Alternatives to the keys shown, what a cluster needs and what the defaults rule out: the reference has them in
comments."""


def test_the_reference_loads_and_has_every_key(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(REFERENCE, encoding="utf-8")
    assert load(file, {}).notes == ()
    data = yaml.safe_load(REFERENCE)
    model = data["models"]["example"]
    entries: list[tuple[dict[str, Any], type[Entry] | Keys]] = [
        (data, file_keys()),
        (data["server"], Server),
        (data["log"], Log),
        (data["prompts"], Prompts),
        (data["engines"], Engines),
        (data["engines"]["groups"]["large"], Group),
        (model, MODEL_KEYS),
        (model["pull"], Pull),
        (model["rope"], Rope),
        (model["adapters"][0] | model["adapters"][1], Adapter),
        (data["rooms"], Rooms),
        (data["rooms"]["tools"], RoomTools),
        (data["rooms"]["mounts"]["docs"], RoomMount),
        (data["rooms"]["templates"]["reader"], RoomTemplate),
        (data["batches"], Batches),
        (data["media"], Media),
        (data["mcp"], MCP),
        (data["mcp"]["servers"]["time"] | data["mcp"]["servers"]["docs"], MCPServer),
        (data["ctx"], Ctx),
        (data["ctx"]["models"]["example"], CtxModel),
    ]
    for said, entry in entries:
        keys = entry if isinstance(entry, Keys) else keys_of(entry)
        assert set(keys.form.model_fields) - set(said) == ONE_OF.get(keys.name, set()), keys.name
    for key in set[str]().union(*ONE_OF.values()):
        assert re.search(rf"^ *# {key}:", REFERENCE, re.MULTILINE)
    drafts = REFERENCE[REFERENCE.index(" draft: ") : REFERENCE.index(" adapters:")]
    assert all(f"{key}: " in drafts for key in Draft.__struct_fields__)
    heading = next(line for line in REFERENCE.splitlines() if line.startswith("runtimes:"))
    following = REFERENCE[REFERENCE.index(heading) :].split("\n  mlx:")
    shown = following[0] + following[1].splitlines()[0]
    assert all(key in shown for key in RUNTIME_KEYS.form.model_fields)


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
            Media,
            MCPServer,
        )
        for name, default in schema.plain_defaults(value).items()
        if default != ()
    }
    assert shown == actual


def test_the_reference_names_every_choice() -> None:
    definitions = json.loads(schema.text())["$defs"]["Model"]["properties"]
    for key in ("tool_prompt", "capabilities", "runtime"):
        choices = re.findall(r'"enum": (\[[^]]*\])', json.dumps(definitions[key]))
        for choice in json.loads(choices[0]):
            assert re.search(rf"\b{re.escape(choice)}\b", REFERENCE), choice

"""Which module may import what: imports point down only, and what is heavy loads on first use."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1]
NETWORK = {"asyncio", "http", "multiprocessing", "select", "selectors", "socket", "socketserver", "ssl", "subprocess"}

# Layers of ours that each part may import, itself aside. "gateway" alone is its `__init__`: the version.
OURS: dict[str, set[str]] = {
    "normalizers": set(),
    "gateway": set(),
    "gateway.errors": set(),
    "gateway.wire": {"gateway.errors"},
    "gateway.asgi": {"gateway.errors"},
    "gateway.patterns": set(),
    "gateway.pipe": set(),
    "gateway.upstream": {"gateway.errors"},
    "gateway.config": {"gateway.errors", "normalizers"},
    "gateway.provider": {"gateway.errors", "gateway.patterns"},
    "gateway.backends": {"gateway.errors", "gateway.wire", "gateway.upstream", "gateway.config"},
    "gateway.native_calls": {"gateway.wire", "normalizers"},
    "gateway.normalize": {"gateway.errors", "gateway.wire", "gateway.backends", "gateway.native_calls", "normalizers"},
    "gateway.prompting": {"gateway.errors", "gateway.wire", "normalizers"},
    "gateway.forcing": {"gateway.errors", "gateway.wire", "gateway.backends", "normalizers"},
    "gateway.enforcement": {"gateway.errors", "gateway.wire", "gateway.forcing"},
    "gateway.conformance": {
        *("gateway.errors", "gateway.wire", "gateway.forcing", "gateway.enforcement", "gateway.patterns"),
    },
    "gateway.history": {"gateway.wire", "normalizers"},
    "gateway.estimate": {"gateway.wire"},
    "gateway.engines": {"gateway.errors", "gateway.upstream", "gateway.config", "gateway.backends"},
    "gateway.recording": {"gateway.wire", "gateway.normalize"},
    "gateway.ledger": {"gateway.errors", "gateway.wire", "gateway.normalize", "gateway.recording"},
    "gateway.core": {
        *("gateway.errors", "gateway.wire", "gateway.config", "gateway.backends", "gateway.engines"),
        *("gateway.normalize", "gateway.prompting", "gateway.forcing", "gateway.history"),
        *("gateway.enforcement", "gateway.conformance"),
        *("gateway.upstream", "gateway.recording", "gateway.ledger", "gateway.estimate", "normalizers"),
    },
    "gateway.reload": {"gateway.errors", "gateway.config", "gateway.core"},
    "gateway.logs": {"gateway.config"},
    "gateway.metrics": {"gateway.core", "gateway.engines", "gateway.ledger", "gateway.reload"},
    "gateway.status": {"gateway", "gateway.core", "gateway.reload"},
    "gateway.principal": set(),
    "gateway.keys": {"gateway.errors", "gateway.principal"},
    "gateway.store": {"gateway.errors"},
    "gateway.retention": {"gateway.errors", "gateway.config", "gateway.store"},
    "gateway.services": {
        *("gateway.errors", "gateway.asgi", "gateway.config", "gateway.core", "gateway.store", "gateway.reload"),
        "gateway.retention",
    },
    "gateway.api": {
        *("gateway", "gateway.errors", "gateway.asgi", "gateway.wire", "gateway.core"),
        *("gateway.principal", "gateway.keys", "gateway.services", "gateway.store", "gateway.backends"),
        *("gateway.estimate", "gateway.config", "gateway.reload", "gateway.status", "gateway.metrics"),
    },
    "gateway.inprocess": {"gateway.errors", "gateway.core", "gateway.provider", "gateway.wire"},
    "gateway.turn": {"gateway.errors", "gateway.provider"},
    "gateway.rooms": {
        *("gateway.errors", "gateway.config", "gateway.core", "gateway.provider", "gateway.inprocess", "gateway.turn"),
        *("gateway", "gateway.asgi", "gateway.principal", "gateway.store", "gateway.services", "gateway.wire"),
    },
    "gateway.ctx": {
        *("gateway.errors", "gateway.config", "gateway.core", "gateway.wire", "gateway.backends", "gateway.upstream"),
        *("gateway.engines", "gateway.services", "gateway.store", "gateway.ledger"),
    },
    "gateway.pull": {"gateway.errors", "gateway.config"},
    "gateway.description": {"gateway", "gateway.api"},
    "gateway.app": {
        "gateway.description",
        *("gateway.config", "gateway.core", "gateway.api", "gateway.rooms", "gateway.services", "normalizers"),
        *("gateway.ctx", "gateway.reload", "gateway.logs"),
    },
    "gateway.cli": {
        *("gateway", "gateway.errors", "gateway.config", "gateway.keys", "gateway.pull", "gateway.app"),
        *("gateway.backends", "gateway.core", "gateway.ctx", "gateway.pipe", "normalizers"),
        *("gateway.wire", "gateway.normalize", "gateway.engines"),
        *("gateway.rooms", "gateway.services", "gateway.store"),
    },
    "gateway.__main__": {"gateway.cli"},
}

# Packages of others. Where a part isn't named it may import none.
THEIRS: dict[str, set[str]] = {
    "normalizers": {"lark"},
    "gateway.wire": {"msgspec"},
    "gateway.patterns": {"jsonschema", "referencing"},
    "gateway.upstream": {"httptools"},
    "gateway.config": {"keyring", "msgspec", "pydantic", "pydantic_core", "yaml"},
    "gateway.provider": {"httpx", "jsonschema", "pydantic", "referencing"},
    "gateway.backends": {"msgspec"},
    "gateway.estimate": {"msgspec"},
    "gateway.forcing": {"msgspec"},
    "gateway.keys": {"msgspec"},
    "gateway.principal": {"msgspec"},
    "gateway.reload": {"msgspec"},
    "gateway.status": {"msgspec"},
    "gateway.native_calls": {"msgspec"},
    "gateway.normalize": {"msgspec"},
    "gateway.prompting": {"msgspec"},
    "gateway.enforcement": {"msgspec"},
    "gateway.conformance": {"jsonschema", "msgspec", "referencing"},
    "gateway.history": {"msgspec"},
    "gateway.engines": {"mlx_lm", "msgspec", "xllamacpp"},
    "gateway.recording": {"msgspec"},
    "gateway.logs": {"msgspec"},
    "gateway.metrics": {"prometheus_client"},
    "gateway.ledger": {"msgspec"},
    "gateway.core": {"msgspec"},
    "gateway.inprocess": {"httpx"},
    "gateway.rooms": {
        *("bs4", "cryptography", "fsspec", "httpx", "keyring", "markdownify", "msgspec", "sqlalchemy"),
    },
    "gateway.store": {"alembic", "sqlalchemy"},
    "gateway.api": {"httptools", "msgspec", "sqlalchemy", "starlette", "uvicorn"},
    "gateway.ctx": {"msgspec", "sqlalchemy"},
    "gateway.pull": {"httpx", "huggingface_hub"},
    "gateway.app": {"uvicorn"},
    "gateway.cli": {"httpx", "msgspec", "uvicorn", "yaml"},
}

PURE = (
    *("normalizers", "gateway.errors", "gateway.wire"),
    *("gateway.prompting", "gateway.forcing", "gateway.history", "gateway.native_calls", "gateway.normalize"),
    *("gateway.enforcement", "gateway.conformance"),
    *("gateway.recording", "gateway.ledger", "gateway.estimate"),
)
"""No network and no processes in these."""

HEAVY = {
    "alembic",
    "httpx",
    "huggingface_hub",
    "jsonschema",
    "lark",
    "llama_cpp",
    "mlx",
    "mlx_lm",
    "openai",
    "prometheus_client",
    "sqlalchemy",
    "xllamacpp",
}

# What may come with an import: the hot path is small, and the pure library brings nothing.
WITHOUT: dict[str, set[str]] = {
    "normalizers": HEAVY | {"asyncio", "msgspec", "pydantic", "yaml"},
    "gateway.wire.chat": HEAVY | {"asyncio", "pydantic", "starlette", "uvicorn", "yaml"},
    "gateway.cli.main": HEAVY | {"pydantic", "starlette", "uvicorn", "yaml"},
    "gateway.app": HEAVY | {"pydantic", "starlette", "yaml"},
    "gateway.rooms.tools": HEAVY - {"httpx"},
    "gateway.ctx.live": HEAVY,
    "gateway.ctx.runner": HEAVY | {"asyncio", "json", "msgspec", "pydantic", "starlette", "uvicorn", "yaml"},
}


@dataclass(frozen=True)
class Import:
    place: str
    part: str
    target: str


def part_of(module: str) -> str:
    """The row of the tables: `gateway.api.chat` belongs to `gateway.api`, all of `normalizers` to itself."""
    return "normalizers" if module.split(".")[0] == "normalizers" else ".".join(module.split(".")[:2])


def imports() -> Iterator[Import]:
    for package in ("gateway", "normalizers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                for target in targets(node):
                    line = getattr(node, "lineno", 0)
                    yield Import(f"{path.relative_to(ROOT)}:{line}", part_of(module), target)


def targets(node: ast.AST) -> list[str]:
    """The modules that this node of a syntax tree imports, be it by a string of a table (`pkg.mod:Class`)."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module="gateway", names=names):
            return [f"gateway.{alias.name}" if is_module(f"gateway/{alias.name}") else "gateway" for alias in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
        case ast.ImportFrom():
            raise AssertionError("imports are absolute here")
        case ast.Constant(value=str(text)) if found := re.fullmatch(r"((?:gateway|normalizers)(?:\.\w+)*):\w+", text):
            return [found[1]]
        case ast.Call(func=ast.Name("import_module"), args=[ast.Constant(value=str(name)), *_]):
            return [name]
        case _:
            return []


def is_module(path: str) -> bool:
    return (ROOT / path).is_dir() or (ROOT / f"{path}.py").is_file()


IMPORTS = list(imports())


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import a.b, c", ["a.b", "c"]),
        ("from gateway.wire.chat import encode", ["gateway.wire.chat"]),
        ("from gateway import core, __version__", ["gateway.core", "gateway"]),
        ("def f():\n    import lark", ["lark"]),
        ("if TYPE_CHECKING:\n    from httpx import Client", ["httpx"]),
        ("import_module('keyring')", ["keyring"]),
        ("TABLE = {'hub': 'gateway.pull.hub:fetch'}", ["gateway.pull.hub"]),
        ("'gateway: a text'", []),
    ],
)
def test_imports_are_found(source: str, found: list[str]) -> None:
    assert [target for node in ast.walk(ast.parse(source)) for target in targets(node)] == found


def test_every_part_has_its_row() -> None:
    parts = {found.part for found in IMPORTS} | {
        part_of(f"gateway.{path.stem}")
        for path in (ROOT / "gateway").iterdir()
        if path.suffix == ".py" and path.stem != "__init__"
    }
    assert parts <= set(OURS)
    assert set(THEIRS) <= set(OURS)


@pytest.mark.parametrize("part", OURS)
def test_a_part_imports_what_its_row_allows(part: str) -> None:
    wrong = []
    for found in IMPORTS:
        if found.part != part:
            continue
        top = found.target.split(".")[0]
        if top in ("gateway", "normalizers"):
            allowed = part_of(found.target) in OURS[part] | {part}
        else:
            allowed = top in sys.stdlib_module_names or top in THEIRS.get(part, set())
        if not allowed:
            wrong.append(f"{found.place} imports {found.target}")
    assert not wrong


def test_layers_form_no_ring() -> None:
    left = {part: set(below) for part, below in OURS.items()}
    while left:
        free = {part for part, below in left.items() if not below & set(left)}
        assert free, f"a ring among {sorted(left)}"
        left = {part: below for part, below in left.items() if part not in free}


@pytest.mark.parametrize("part", PURE)
def test_pure_parts_do_no_io(part: str) -> None:
    wrong = [
        f"{found.place} imports {found.target}"
        for found in IMPORTS
        if found.part == part and found.target.split(".")[0] in NETWORK
    ]
    assert not wrong


@pytest.mark.parametrize("module", WITHOUT)
def test_heavy_modules_load_on_first_use(module: str) -> None:
    script = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, check=True
    )
    assert not set(done.stdout.split()) & WITHOUT[module]


def test_the_wheel_holds_two_packages() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["gateway", "normalizers"]

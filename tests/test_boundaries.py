"""Which module may import what: imports point down only, and what is heavy loads on first use."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.allowed_imports import FEATURES, OURS, THEIRS
from tests.conftest import ROOT
from tests.patience import PATIENCE

NETWORK = {"asyncio", "http", "multiprocessing", "select", "selectors", "socket", "socketserver", "ssl", "subprocess"}


PURE = (
    *("normalizers", "gateway.errors", "gateway.wire", "gateway.request", "gateway.answer"),
    *(f"gateway.features.{name}.wire" for name in ("media", "messages", "ollama", "responses", "vectors")),
)
"""Nothing that these import, and nothing that is imported there in turn, reaches a network or a process."""

HEAVY = {
    "alembic",
    "av",
    "ctranslate2",
    "faster_whisper",
    "httpx",
    "huggingface_hub",
    "jinja2",
    "jsonschema",
    "lark",
    "llama_cpp",
    "llguidance",
    "mlx",
    "mlx_lm",
    "onnxruntime",
    "openai",
    "piper",
    "prometheus_client",
    "psutil",
    "psycopg",
    "ray",
    "rich",
    "sqlalchemy",
    "websockets",
    "xllamacpp",
}

# What may come with an import: the hot path is small, and the pure library brings nothing.
WITHOUT: dict[str, set[str]] = {
    "normalizers": HEAVY | {"asyncio", "msgspec", "pydantic", "yaml"},
    "gateway.wire.chat": HEAVY | {"asyncio", "pydantic", "starlette", "uvicorn", "yaml"},
    "gateway.cli.main": HEAVY | {"pydantic", "starlette", "uvicorn", "yaml"},
    "gateway.app": HEAVY | {"pydantic", "starlette", "yaml"},
    "gateway.cli.serve": HEAVY | {"pydantic", "starlette", "uvicorn", "yaml"},
    "gateway.features.agents.tools": HEAVY - {"httpx"},
    "gateway.features.ctx.live": HEAVY,
    "gateway.features.ctx.runner": HEAVY | {"asyncio", "json", "msgspec", "pydantic", "starlette", "uvicorn", "yaml"},
}


@dataclass(frozen=True)
class Import:
    place: str
    part: str
    target: str


def part_of(module: str) -> str:
    """The row of the tables: `gateway.api.chat` belongs to `gateway.api`, all of `normalizers` to itself."""
    if module.split(".")[0] == "normalizers":
        return "normalizers"
    return ".".join(module.split(".")[: 3 if module.startswith("gateway.features.") else 2])


DOOR = ROOT / "gateway/feature.py"
"""Its table names the features as entry points name those of others: nothing comes with an import of it."""


@cache
def nodes(path: Path) -> list[ast.AST]:
    """The nodes of a file's syntax tree that import something."""
    found = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if targets(node)]
    if path == DOOR:
        return [node for node in found if not any(name.startswith("gateway.features.") for name in targets(node))]
    return found


@cache
def imports() -> list[Import]:
    found = []
    for package in ("gateway", "normalizers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            for node in nodes(path):
                for target in targets(node):
                    line = getattr(node, "lineno", 0)
                    found.append(Import(f"{path.relative_to(ROOT)}:{line}", part_of(module), target))
    return found


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


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import a.b, c", ["a.b", "c"]),
        ("from gateway.wire.chat import encode", ["gateway.wire.chat"]),
        ("from gateway import core, __version__", ["gateway.core", "gateway"]),
        ("def f():\n    import lark", ["lark"]),
        ("if TYPE_CHECKING:\n    from httpx import Client", ["httpx"]),
        ("import_module('keyring')", ["keyring"]),
        ("TABLE = {'hub': 'gateway.features.models.pull.hub:fetch'}", ["gateway.features.models.pull.hub"]),
        ("'gateway: a text'", []),
    ],
)
def test_imports_are_found(source: str, found: list[str]) -> None:
    assert [target for node in ast.walk(ast.parse(source)) for target in targets(node)] == found


def test_every_part_has_its_row() -> None:
    parts = {found.part for found in imports()} | {
        part_of(f"gateway.{path.stem}")
        for path in (ROOT / "gateway").iterdir()
        if path.suffix == ".py" and path.stem != "__init__"
    }
    assert parts <= set(ROWS)
    assert set(THEIRS) <= set(ROWS)
    assert {path.name for path in (ROOT / "gateway/features").iterdir() if (path / "feature.py").is_file()} == {
        *FEATURES
    }


def row(part: str) -> set[str]:
    """What the part may import: a feature the features that it names, and all that isn't a feature."""
    name = part.removeprefix("gateway.features.")
    return {*OURS, *(f"gateway.features.{other}" for other in FEATURES[name])} if name in FEATURES else OURS[part]


ROWS = (*OURS, *(f"gateway.features.{name}" for name in FEATURES))


@pytest.mark.parametrize("part", ROWS)
def test_a_part_imports_what_its_row_allows(part: str) -> None:
    wrong = []
    for found in imports():
        if found.part != part:
            continue
        top = found.target.split(".")[0]
        if top in ("gateway", "normalizers"):
            allowed = part_of(found.target) in row(part) | {part}
        else:
            allowed = top in sys.stdlib_module_names or top in THEIRS.get(part, set())
        if not allowed:
            wrong.append(f"{found.place} imports {found.target}")
    assert not wrong


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name; a package is its `__init__`."""
    found = {}
    for package in ("gateway", "normalizers", "benchmarks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def owner(target: str) -> str:
    """The module that an import names: `gateway.wire.sse` for `gateway.wire.sse.events`; "" for one of others."""
    while target and target not in MODULES:
        target = target.rpartition(".")[0]
    return target


@cache
def files() -> dict[str, set[str]]:
    """Module → the modules of ours that it imports, lazily and for types alone included."""
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        found = set()
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {owner(f"{node.module}.{alias.name}") for alias in node.names}
            else:
                found |= {owner(target) for target in targets(node)}
        graph[module] = found - {"", module}
    return graph


@cache
def reached(module: str) -> set[str]:
    """All modules of ours that come with `module`, itself included."""
    seen: set[str] = set()
    left = [module]
    while left:
        if (name := left.pop()) not in seen:
            seen.add(name)
            left += files()[name]
    return seen


def test_no_two_files_import_each_other() -> None:
    """Neither directly nor by way of others."""
    circles = {frozenset(b for b in reached(a) if a in reached(b)) for a in MODULES}
    assert not {tuple(sorted(circle)) for circle in circles if len(circle) > 1}


def test_few_modules_lie_loose() -> None:
    loose = {path.name for path in (ROOT / "gateway").glob("*.py")} - {"__init__.py", "__main__.py"}
    assert loose == {"app.py", "errors.py", "feature.py", "line.py", "services.py", "upstream.py"}


def test_no_feature_is_imported_from_outside() -> None:
    """Those of the table are found as those of other packages are: by name."""
    outside = [found for found in imports() if not found.part.startswith("gateway.features.")]
    assert len(outside) > 1000
    assert not [found for found in outside if found.target.startswith("gateway.features.")]


def is_pure(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in PURE)


@pytest.mark.parametrize("module", [module for module in MODULES if is_pure(module)])
def test_pure_parts_do_no_io(module: str) -> None:
    """Transitively."""
    wrong = []
    for name in reached(module):
        for node in nodes(MODULES[name]):
            wrong += [f"{name} imports {target}" for target in targets(node) if target.split(".")[0] in NETWORK]
    assert not wrong


STRAIGHT = ("gateway.core", "gateway.request", "gateway.answer", "gateway.server", "gateway.backends")
"""The path of a request: its functions stay short enough to read at a glance."""
MAX_LINES = 60


@pytest.mark.parametrize("module", [module for module in MODULES if part_of(module) in STRAIGHT])
def test_functions_on_the_path_of_a_request_are_short(module: str) -> None:
    functions = [node for node in nodes(MODULES[module]) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    assert not {name: lines for name, lines in lengths.items() if lines > MAX_LINES}


def test_nothing_is_raised_in_a_handler_of_groups() -> None:
    """Python 3.11.2, Debian's, wraps it in a group, so that no caller knows the error; 3.11.7 does not."""
    found = [
        f"{module}:{node.lineno}"
        for module, path in MODULES.items()
        for handlers in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(handlers, ast.TryStar)
        for handler in handlers.handlers
        for node in ast.walk(handler)
        if isinstance(node, ast.Raise)
    ]
    assert not found


@pytest.mark.parametrize("module", WITHOUT)
def test_heavy_modules_load_on_first_use(module: str) -> None:
    script = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, check=True
    )
    assert not set(done.stdout.split()) & WITHOUT[module]


def test_code_of_engines_loads_for_models_whose_engine_is_ours() -> None:
    script = (
        "import sys\n"
        "from gateway.config import load\n"
        "from gateway.core import Gateway\n"
        "url = 'http://127.0.0.1:1'\n"
        "text = 'active_model: m\\nmodels: {{m: {{runtime: {}}}}}'\n"
        "Gateway(load('config.yaml', text=text.format(f'openai, base_url: \"{url}\"')))\n"
        "assert not {'gateway.engines', 'gateway.prompts'} & set(sys.modules)\n"
        "Gateway(load('config.yaml', text=text.format('llama.cpp, path: m.gguf')))\n"
        "assert {'gateway.engines', 'gateway.prompts'} <= set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=PATIENCE, cwd=ROOT, check=True)


def test_code_of_sound_and_pictures_loads_for_requests_that_need_it() -> None:
    """A gateway that serves chats alone has the paths of the others, and no module of theirs but these two."""
    script = (
        "import asyncio, sys\n"
        "from gateway.app import build\n"
        "from gateway.config import load\n"
        "from gateway.core import Gateway\n"
        "from gateway.wire.chat import ChatRequest\n"
        "config = load('config.yaml', text='active_model: m\\nmodels: {m: {runtime: echo}}')\n"
        "build(config)\n"
        "async def ask():\n"
        '    asked = ChatRequest.parse(b\'{"messages": [{"role": "user", "content": "a"}]}\', \'chat\')\n'
        "    with await Gateway(config).chat(asked) as run:\n"
        "        await run.whole()\n"
        "asyncio.run(ask())\n"
        "parts = 'media', 'sound', 'transcri', 'speak'\n"
        "print(*(name for name in sys.modules if any(part in name for part in parts)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, check=True
    )
    assert set(done.stdout.split()) == {"gateway.features.media", "gateway.features.media.feature"}


def read_bodies(source: str) -> Iterator[str]:
    """The calls that take a whole body as it was read: `kind.parse(await request.body())` and the like."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            for given in node.args:
                parts = given.values if isinstance(given, ast.BoolOp) else [given]
                if any(ast.unparse(part) == "await request.body()" for part in parts):
                    yield ast.unparse(node.func)


def test_what_decodes_a_body_runs_beside_the_event_loop() -> None:
    """By `request.translated`, unless `request.short_body` bounds it: an endpoint of short fields gets 30 MB, too."""
    assert [*read_bodies("read(x, await request.body() or b'{}')\nf(await request.body())")] == ["read", "f"]
    found = {call for path in (ROOT / "gateway").rglob("*.py") for call in read_bodies(path.read_text())}
    assert found == {"len", "asyncio.to_thread"}


def test_the_wheel_holds_two_packages() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["gateway", "normalizers"]


def test_no_module_imports_from_a_test_module() -> None:
    """What tests share is in modules of its own: see tests/README.md."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom | ast.Import) and any(map(names_tests, imported(node)))
    ]
    assert not found


def imported(node: ast.ImportFrom | ast.Import) -> list[str]:
    """The modules that it names; a name that it takes from a package may be one, too."""
    names = [each.name for each in node.names]
    return names if isinstance(node, ast.Import) else [node.module or "", *names]


def names_tests(module: str) -> bool:
    return any(part.startswith("test_") for part in module.split("."))


OF_LIBRARIES = {
    # Public in spite of their names: what Python documents of named tuples, and the end of a process that forked.
    "_asdict",
    "_exit",
    "_fields",
    "_make",
    "_replace",
    # A command line that click has read in part: no public name of click's gives the rest.
    "_protected_args",
}
"""Names with a leading `_` that aren't ours and that tests may use."""

BY_TEXT = {"attrgetter", "delattr", "getattr", "hasattr", "object", "patch", "setattr"}
"""Functions that take an attribute's name as a text; `object` is `patch.object`."""


def private_names(source: str) -> Iterator[tuple[int, str]]:
    """The lines and names where a module uses what others keep to themselves, be it by a text."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        match node:
            case ast.Attribute(value=ast.Name("self" | "cls") | ast.Call(func=ast.Name("super"))):
                pass
            case ast.Attribute(attr=name):
                names = [name]
            case ast.ImportFrom(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name), args=given) if name in BY_TEXT:
                texts = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
                names = [part for text in texts for part in text.split(".")]
        line = getattr(node, "lineno", 0)
        yield from ((line, name) for name in names if re.fullmatch(r"_\w*(?<!__)", name) and name not in OF_LIBRARIES)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("self._a, cls._a, super()._a(), x.a, x.__init__, os._exit(0)", []),
        ("x._a.b, self._a._b", ["_a", "_b"]),
        ("x._a = x()._b = 1", ["_a", "_b"]),
        ("from gateway.a import b, _c", ["_c"]),
        ("monkeypatch.setattr('tests.a._b', 1), monkeypatch.setattr(x, '_c', 1)", ["_b", "_c"]),
        ("patch.object(x, '_a'), patch('x._b'), getattr(x, '_c'), setattr(x, '__init__', f)", ["_a", "_b", "_c"]),
        ("say('_a'), setattr(x, 'a', '_ b')", []),
    ],
)
def test_private_names_are_found(source: str, found: list[str]) -> None:
    assert sorted(name for _, name in private_names(source)) == found


def test_no_test_uses_a_private_name() -> None:
    """It may change whenever the code does: see tests/README.md."""
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in private_names(path.read_text("utf-8"))
    ]
    assert not found

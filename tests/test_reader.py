"""What a reader can hold in his head on the path of a request: how large classes and functions may be, and who may
write to an object.

What is larger has its size here, with the reason. A size that has shrunk fails too: write the new one down, or delete
the line.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

GATEWAY = Path(__file__).parents[1] / "gateway"
PACKAGES = (
    *("server", "api", "request", "core", "engines", "backends", "answer", "prompts", "wire", "schema", "observe"),
    *(f"features/{name}" for name in ("completions", "keys", "media", "messages", "ollama", "operations")),
    *("features/responses", "features/traces", "features/vectors"),
)

METHODS, ATTRIBUTES, LINES = 20, 15, 45
BESIDE_FEATURES = 34_000
"""Lines of the gateway that aren't blank, without those of features. What a chat can do without is a feature."""

CLASSES = {
    # A request or an answer of a protocol has the fields that it has.
    "wire/chat.py:_Known": (0, 29),
    "wire/chat.py:ChatRequest": (6, 24),
    "wire/completions.py:Known": (0, 17),
    "features/responses/wire/request.py:CreateResponse": (4, 29),
    "observe/request_log.py:LogEntry": (0, 25),
    "observe/request_log.py:Stats": (5, 16),
    "engines/snapshot.py:EngineSnapshot": (0, 24),
    # What uvicorn calls by name is one class, with what it keeps for each connection.
    "server/fast_protocol.py:FastProtocol": (29, 25),
    # Every engine is used through it, and a subclass overrides what is different.
    "backends/base.py:Backend": (27, 2),
    "backends/replicas.py:Replicas": (23, 7),
    "backends/llamacpp.py:LlamaCppBackend": (41, 13),
    # Whoever deals with an engine holds this one object; its parts are in modules of their own.
    "engines/engine.py:Engine": (34, 19),
    # An answer while it is read, and what is booked at its end.
    "core/run.py:Run": (16, 16),
}
"""Methods and attributes of each larger class."""

FUNCTIONS = {
    "features/operations/metrics.py:_answers": 58,  # a table of metrics
    "backends/llamacpp.py:open_raw": 57,
    "engines/mlx_server.py:handler": 52,  # a class within, since its base is imported late
    "wire/chat.py:parse": 54,  # a table of fields
    "features/responses/wire/answer.py:response_object": 49,  # a table of fields
}

FOREIGN = (
    *("engines/mlx_server.py", "engines/xllamacpp_options.py", "engines/xllamacpp_server.py"),
    "features/media/sound_worker.py",
)
"""Run in the engine's process, on that engine's own objects, most of which have no types."""

WRITES = {
    # The parts of an answer, and the slots of an engine, belong to the module that writes to them.
    "answer/capture.py": 3,
    "answer/native_calls.py": 9,
    "prompts/live.py": 1,
    "prompts/placement.py": 2,
    # A connection passes from one object to another.
    "backends/openai.py": 3,
    "server/bodies.py": 1,
    "server/fast_protocol.py": 9,
    "server/keepalive.py": 1,
    "server/tls.py": 1,
    # What an API keeps with what it has read.
    "features/completions/endpoints.py": 1,
    "api/dispatch.py": 1,
    "api/entry.py": 1,
    "features/media/uploads.py": 1,
    "features/ollama/endpoints.py": 1,
    "features/responses/websocket.py": 1,
    "backends/ollama.py": 1,
    "core/passthrough.py": 1,
    # Counters of engines and servers.
    "backends/choice.py": 2,
    "backends/replicas.py": 1,
    "core/model_server.py": 1,
    "engines/requests.py": 1,
    "engines/residency.py": 3,
    "observe/request_log.py": 1,
}
"""Statements that write to an attribute of another object, which the function didn't make."""

JSON = (
    "wire/",
    "schema/",
    *(f"features/{name}/wire/" for name in ("media", "messages", "ollama", "responses", "vectors")),
)
"""Packages whose functions take JSON of any kind."""

ANY = {
    # A JSON value of any kind, from a client, a model or an engine, whose kind the function finds out.
    "answer/contents.py": 1,
    "answer/stream.py": 1,
    "answer/whole.py": 1,
    "features/operations/live.py": 4,
    "features/responses/websocket.py": 1,
    "backends/gguf.py": 2,
    "backends/llamacpp_choices.py": 1,
    "backends/ollama_chat.py": 3,
    "backends/prompt_progress.py": 3,
    "backends/quiet.py": 2,
    "backends/toolnames.py": 4,
    "core/repeated.py": 2,
    "engines/memory.py": 8,
    "engines/process.py": 1,
    "prompts/doctor.py": 8,
    "request/call_format.py": 4,
    "request/checks.py": 1,
    "request/constraints.py": 1,
    "request/grammars.py": 1,
    "request/known_schemas.py": 4,
    "request/repair_history.py": 4,
    "request/repeats.py": 2,
    "request/token_estimate.py": 2,
    "request/tools_in_prompt.py": 1,
    # Objects of SQLAlchemy, fsspec, mlx-lm and uvicorn, whose types have parameters that don't matter or none at all.
    "features/media/endpoints.py": 1,
    "features/operations/commands/plan.py": 1,
    "features/operations/commands/usage.py": 1,
    "features/operations/endpoints.py": 1,
    "features/operations/usage_table.py": 2,
    "features/responses/conversation_store.py": 5,
    "features/responses/item_rows.py": 4,
    "features/responses/response_store.py": 1,
    "engines/mlx_prompts.py": 11,
    "prompts/sharing.py": 1,
    "server/fast_protocol.py": 2,
    "server/websocket.py": 2,
    # Tasks and coroutines of any result, arguments that are passed on.
    "answer/capture.py": 2,
    "core/pool.py": 3,
    "core/gateway.py": 1,
    "features/traces/route.py": 2,
    "features/traces/traces.py": 2,
    "observe/shares.py": 2,
    "server/asgi.py": 1,
}
"""Parameters and results whose type has an `Any` other than the values of a JSON object or array."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((GATEWAY / package).rglob("*.py")):
            yield path.relative_to(GATEWAY).as_posix(), ast.parse(path.read_text("utf-8"))


def named(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def written(node: ast.AST) -> Iterator[ast.Attribute]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner


def size_of(kind: ast.ClassDef) -> tuple[int, int]:
    methods = [each for each in kind.body if isinstance(each, Definition)]
    attributes = {each.attr for method in methods for each in written(method) if named(each.value, "self")}
    fields = {
        each.target.id for each in kind.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return len(methods), len(attributes | fields)


def writes_of(function: Definition) -> int:
    """How often it writes to attributes of objects that it was given."""
    own = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sum(not named(each.value, "self", "cls", *own) for each in written(function))


def types_of(function: Definition) -> Iterator[ast.expr]:
    given = function.args
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if each is not None and each.annotation is not None:
            yield each.annotation
    if function.returns is not None:
        yield function.returns


def is_any(type: ast.AST) -> bool:
    """Whether the type has an `Any`, the values of JSON objects and arrays aside."""
    if isinstance(type, ast.Name):
        return type.id == "Any"
    if isinstance(type, ast.Subscript) and named(type.value, "dict", "Mapping", "list", "Sequence", "Iterable"):
        values = type.slice.elts if isinstance(type.slice, ast.Tuple) else [type.slice]
        return any(is_any(value) for value in values if not named(value, "Any"))
    return any(map(is_any, ast.iter_child_nodes(type)))


def found() -> tuple[dict[str, tuple[int, int]], dict[str, int], Counter[str]]:
    classes, functions, writes = {}, {}, Counter[str]()
    for name, module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                methods, attributes = size_of(node)
                if methods > METHODS or attributes > ATTRIBUTES:
                    classes[f"{name}:{node.name}"] = methods, attributes
            elif isinstance(node, Definition):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LINES:
                    functions[f"{name}:{node.name}"] = lines
                if name not in FOREIGN and (count := writes_of(node)):
                    writes[name] += count
    return classes, functions, writes


@pytest.fixture(scope="module")
def sizes() -> tuple[dict[str, tuple[int, int]], dict[str, int], Counter[str]]:
    return found()


def test_little_lies_beside_the_features() -> None:
    paths = [path for path in GATEWAY.rglob("*.py") if "features" not in path.relative_to(GATEWAY).parts]
    lines = sum(1 for path in paths for line in path.read_text("utf-8").splitlines() if line.strip())
    assert BESIDE_FEATURES - 3000 < lines <= BESIDE_FEATURES


def test_classes_are_small(sizes: tuple[object, object, object]) -> None:
    assert sizes[0] == CLASSES


def test_functions_are_short(sizes: tuple[object, object, object]) -> None:
    assert sizes[1] == FUNCTIONS


def test_objects_are_changed_by_themselves(sizes: tuple[object, object, object]) -> None:
    assert sizes[2] == WRITES


def test_what_the_gate_counts() -> None:
    (kind,) = ast.parse("""
class Kind:
    a: int
    def __init__(self): self.b = self.c = 1
    def twice(self, other):
        made = Kind()
        made.a = other.a = other.made.b = 1
""").body
    assert isinstance(kind, ast.ClassDef)
    assert size_of(kind) == (2, 3)
    assert [writes_of(each) for each in kind.body if isinstance(each, Definition)] == [0, 2]


def test_what_functions_take_and_give_has_a_type() -> None:
    counts: Counter[str] = Counter()
    for name, module in modules():
        for node in ast.walk(module):
            if isinstance(node, Definition) and name not in FOREIGN and not name.startswith(JSON):
                counts[name] += sum(map(is_any, types_of(node)))
    assert +counts == ANY

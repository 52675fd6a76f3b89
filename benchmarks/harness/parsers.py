"""Tool-call parsers of other servers, in a process of their own: pieces go in, CPU time or arguments come out.

    python -P parsers.py sglang | vllm

It runs under a Python that has the package and imports nothing of ctxgate. The package is there without most of what
serving needs (torch, kernels, models). Its parsing modules run as they are published; around them:

- the package's own `__init__` isn't run, since it imports everything;
- for modules named in `STAND_INS`, which the parsers' imports reach but parsing never uses, there are empty ones.

A line of JSON in, `{"parser": NAME, "pieces": [...], "task": "time" | "watch"}`, gives one out:

- time: `{"seconds": CPU time of this process for each piece}`
- watch: `{"fragments": [text of arguments, ...]}`, as they left
- either: `{"error": ...}`

The first line out, before any in, is `{"version": ...}`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Step = Callable[[str], Any]
Begin = Callable[[], tuple[Step, Callable[[Any], Iterator[str]]]]
"""A new parser: what a piece is given to, and what arguments its answer holds."""

STAND_INS = {
    "sglang": (),
    "vllm": (
        "torch",
        "transformers",
        "vllm.config",
        "vllm.model_executor",
        "vllm.multimodal",
        "vllm.transformers_utils",
        "vllm.utils.torch_utils",
        "vllm.v1.metrics",
        "vllm.v1.utils",
    ),
}
PARSERS = {
    "sglang": {
        "lfm2": "lfm2_detector:Lfm2Detector",
        "pythonic": "pythonic_detector:PythonicDetector",
        "hermes": "hermes_detector:HermesDetector",
    },
    "vllm": {
        "lfm2": "lfm2_tool_parser:Lfm2ToolParser",
        "pythonic": "pythonic_tool_parser:PythonicToolParser",
        "hermes": "hermes_tool_parser:Hermes2ProToolParser",
    },
}
TOOL = {"type": "function", "function": {"name": "write_note", "parameters": {"type": "object", "properties": {}}}}


def main() -> None:
    package = sys.argv[1]
    # What the packages print must not come between the answers.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(found: dict[str, object]) -> None:
        print(json.dumps(found), file=out, flush=True)

    parsers = {"sglang": sglang, "vllm": vllm}[package]()
    answer({"version": version(package)})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["task"] == "time":
                answer({"seconds": seconds(parsers[asked["parser"]], asked["pieces"])})
            else:
                answer({"fragments": list(fragments(parsers[asked["parser"]], asked["pieces"]))})
        except Exception as error:  # noqa: BLE001 - whatever it is, the table tells it
            answer({"error": repr(error)})


def seconds(begin: Begin, pieces: Sequence[str]) -> float:
    repeats = max(1, 2_000 // len(pieces))
    begun = time.process_time()
    for _ in range(repeats):
        step, _ = begin()
        for piece in pieces:
            step(piece)
    return (time.process_time() - begun) / repeats / len(pieces)


def fragments(begin: Begin, pieces: Sequence[str]) -> Iterator[str]:
    step, arguments = begin()
    for piece in pieces:
        yield from arguments(step(piece))


def sglang() -> dict[str, Begin]:
    rootless("sglang")
    tools = [import_module("sglang.srt.entrypoints.openai.protocol").Tool.model_validate(TOOL)]

    def begin(detector: Callable[[], Any]) -> tuple[Step, Callable[[Any], Iterator[str]]]:
        return partial(detector().parse_streaming_increment, tools=tools), arguments

    def arguments(result: Any) -> Iterator[str]:
        return (call.parameters for call in result.calls if call.parameters)

    return {name: partial(begin, cls) for name, cls in classes("sglang", "sglang.srt.function_call")}


def vllm() -> dict[str, Begin]:
    rootless("vllm")
    protocol = import_module("vllm.entrypoints.openai.chat_completion.protocol")
    asked = {"messages": [{"role": "user", "content": "Write a note."}], "tools": [TOOL]}
    request = protocol.ChatCompletionRequest.model_validate(asked)

    class Tokenizer:
        """Of its tokenizer a parser only wants to know that it has the format's markers."""

        def get_vocab(self) -> dict[str, int]:
            return {mark: number for number, mark in enumerate(("<|tool_call_start|>", "<|tool_call_end|>"))}

    def begin(parser: Callable[..., Any]) -> tuple[Step, Callable[[Any], Iterator[str]]]:
        extract = parser(Tokenizer(), request.tools).extract_tool_calls_streaming
        so_far = ""

        def step(piece: str) -> Any:
            # The server, too, puts the text together for each token. None of these parsers looks at the ids.
            nonlocal so_far
            before, so_far = so_far, so_far + piece
            return extract(before, so_far, piece, (), (), (), request)

        return step, arguments

    def arguments(delta: Any) -> Iterator[str]:
        calls = delta.tool_calls if delta is not None else ()
        return (call.function.arguments for call in calls if call.function and call.function.arguments)

    return {name: partial(begin, cls) for name, cls in classes("vllm", "vllm.tool_parsers")}


def classes(package: str, folder: str) -> Iterator[tuple[str, Any]]:
    for name, place in PARSERS[package].items():
        module, _, attribute = place.partition(":")
        yield name, getattr(import_module(f"{folder}.{module}"), attribute)


def rootless(package: str) -> None:
    """Makes the package's modules importable without its `__init__`, and stands in for what they need in vain."""
    found = find_spec(package)
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError(f"no package {package}", name=package)
    root = ModuleType(package)
    root.__path__ = list(found.submodule_search_locations)
    sys.modules[package] = root
    sys.meta_path.insert(0, Finder(STAND_INS[package]))


class AnyName(type):
    """A class that has every attribute, and gives what it decorates back."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __or__(cls, other: Any) -> Any:
        return other

    def __ror__(cls, other: Any) -> Any:
        return other

    def __getitem__(cls, key: Any) -> type:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else cls


class Nothing(metaclass=AnyName):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return import_module("pydantic_core").core_schema.any_schema()


class StandIn(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class Finder(MetaPathFinder, Loader):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if any(fullname == name or fullname.startswith(f"{name}.") for name in self.names):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


if __name__ == "__main__":
    main()

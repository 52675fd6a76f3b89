"""Other projects' parsers on the same pieces, in turns with ours: the cost of a piece, and when arguments come out.

SGLang and vLLM each have a venv below ~/.cache/ctxgate/bench, with a few small packages and no GPU stack, and a
process that runs `harness/parsers.py`. A peer that can't run stays in the table with the reason.
"""

from __future__ import annotations

import ast
import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.stacks import Unavailable, install
from benchmarks.normalizer_calls import TOOLS, call, least, nested, reader, text
from normalizers import ToolArgs, get, normalizer, warm

CACHE = Path.home() / ".cache/ctxgate/bench"
CHILD = Path(__file__).parent / "harness/parsers.py"
START, ANSWER = 60.0, 300.0
"""Seconds that a peer may take to import its package, and to read one text."""
FORMS = {"lfm2": "pythonic", "pythonic": "list", "hermes": "hermes"}
"""The form that each parser of a peer reads; see `pieces`."""

VALUES: dict[str, object] = {"50 B": text(50), "2 KB": text(2_000), "9 KB": text(9_000), "nested 4 KB": nested(4_000)}


@dataclass(frozen=True)
class Peer:
    """A package with parsers. `needs` lists the other packages that they import."""

    name: str
    package: str
    needs: str

    def prepare(self, cache: Path) -> Path:
        """The Python with the package, installed if need be. Raises `Unavailable`."""
        install(cache / self.name, tuple(self.needs.split()), alone=self.package)
        return cache / self.name / "bin/python"


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "sglang", "sglang==0.5.23", "ipython msgspec numpy openai orjson partial-json-parser pybase64 requests tqdm"
        ),
        Peer(
            "vllm",
            "vllm==0.33.0",
            "aiohttp cloudpickle fastapi huggingface-hub msgspec numpy openai openai-harmony partial-json-parser "
            "pillow pybase64 pyzmq regex requests",
        ),
    )
}


@dataclass(frozen=True)
class Reader:
    """A row. cost: CPU seconds for each piece. arguments: the fragments of arguments that came out."""

    label: str
    form: str
    cost: Callable[[list[str]], float]
    arguments: Callable[[list[str]], list[str]] | None = None


def main(rounds: int) -> None:
    """Print the table of each peer's parsers and ours. Runs a tenth of the rounds, since some take minutes."""
    readers = [ours("pythonic"), ours("hermes"), Reader("`ast.parse`, brackets closed", "list", by_ast)]
    absent: dict[str, str] = {}
    with ExitStack() as running:
        for peer in PEERS.values():
            say(f"{peer.package}: preparing; the first run downloads it")
            try:
                readers += theirs(running.enter_context(process(peer.name, peer.prepare(CACHE))))
            except Unavailable as why:
                absent[peer.package] = str(why)
        rows = compare(readers, max(1, rounds // 10), VALUES)
    print(f"\n| µs a piece | {' | '.join(VALUES)} | what leaves |\n| --- |{' --: |' * len(VALUES)} --- |")
    print(
        *rows,
        *(f"| {package} |{' |' * len(VALUES)} not measured: {why} |" for package, why in absent.items()),
        sep="\n",
    )


def compare(readers: list[Reader], rounds: int, values: Mapping[str, object]) -> list[str]:
    """The rows of the table, sorted by form. Readers take turns, round by round."""
    readers = sorted(readers, key=lambda row: [*FORMS.values()].index(row.form))
    best: dict[tuple[str, str], float] = {}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for name, value in values.items():
            say(f"round {number + 1} of {rounds}: {name}")
            for row in readers:
                if row.label in failed:
                    continue
                try:
                    seconds = row.cost(pieces(row.form, value))
                except Unavailable as why:
                    failed[row.label] = str(why)
                else:
                    best[row.label, name] = min(seconds, best.get((row.label, name), seconds))
    rows = []
    for row in readers:
        try:
            if row.label in failed:
                raise Unavailable(failed[row.label])
            cells = [*(f"{best[row.label, name] * 1e6:.1f}" for name in values), leaves(row, values)]
        except Unavailable as why:
            cells = [*("" for _ in values), f"not measured: {why}"]
        rows.append(f"| {' | '.join([row.label, *cells])} |")
    return rows


def leaves(row: Reader, values: Mapping[str, object]) -> str:
    """How many fragments come out for the longest text, after a check of all texts' arguments."""
    if row.arguments is None:
        return "nothing: it is only parsed"
    longest, deltas, wrong = 0, 0, []
    for name, value in values.items():
        whole = pieces(row.form, value)
        fragments = row.arguments(whole)
        if not holds("".join(fragments), value):
            wrong.append(name)
        if len(whole) > longest:
            longest, deltas = len(whole), len(fragments)
    if wrong:
        return f"wrong arguments: {', '.join(wrong)}"
    return "the call at its end" if deltas == 1 else f"{deltas:,} deltas for {longest:,} pieces"


def holds(arguments: str, value: object) -> bool:
    try:
        return bool(json.loads(arguments) == {"body": value})
    except ValueError:
        return False


def pieces(form: str, value: object) -> list[str]:
    """A call in a format's text; `list` is the pythonic one without markers, for parsers that know none."""
    if form == "list":
        return [piece for piece in call("pythonic", value, "write_note") if piece not in get("pythonic").markers]
    return call(form, value, "write_note")


def ours(name: str) -> Reader:
    warm(name)
    read = reader(name)

    def arguments(pieces: list[str]) -> list[str]:
        parser = normalizer(name, TOOLS, guarded=True)
        events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish("stop")
        return [event.json for event in events if isinstance(event, ToolArgs)]

    return Reader(f"ctxgate, {name}", name, lambda pieces: least(read, pieces, 1), arguments)


def by_ast(pieces: list[str]) -> float:
    """The least cost of parsing the whole text again for each piece: close the brackets, then `ast.parse`."""

    def read(pieces: list[str]) -> None:
        so_far, closing = "", ""
        for piece in pieces:
            so_far += piece
            for char in piece:  # the texts here have no escapes, and no quote of the other kind
                if closing[:1] == char:
                    closing = closing[1:]
                elif closing[:1] != '"' and char in CLOSING:
                    closing = CLOSING[char] + closing
            try:
                ast.parse(so_far + closing)
            except SyntaxError:
                continue

    return least(read, pieces, 1)


CLOSING = {"(": ")", "[": "]", "{": "}", '"': '"'}


@dataclass(frozen=True)
class Process:
    """A running peer."""

    name: str
    version: str
    child: subprocess.Popen[str]
    errors: Path

    def ask(self, parser: str, pieces: list[str], task: str) -> dict[str, Any]:
        """Raises `Unavailable` if the peer fails or takes too long."""
        assert self.child.stdin is not None
        try:
            print(json.dumps({"parser": parser, "pieces": pieces, "task": task}), file=self.child.stdin, flush=True)
        except BrokenPipeError:
            raise Unavailable(f"it ended: {last_words(self.errors)}") from None
        return answer(self.child, self.errors, ANSWER)


@contextmanager
def process(name: str, python: Path) -> Iterator[Process]:
    """A peer's process. Raises `Unavailable` if the package can't be imported."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "errors").open("w+") as errors:
        child = subprocess.Popen(
            [python, "-P", CHILD, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        with child:
            assert child.stdin is not None
            try:
                version = answer(child, Path(errors.name), START)["version"]
                yield Process(name, version, child, Path(errors.name))
            finally:
                child.kill()
                with suppress(BrokenPipeError):
                    child.stdin.close()


def answer(child: subprocess.Popen[str], errors: Path, seconds: float) -> dict[str, Any]:
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], seconds)
    if not ready:
        child.kill()  # else the next question would get this answer
        raise Unavailable(f"no answer in {seconds:.0f} s")
    line = child.stdout.readline()
    if not line:
        raise Unavailable(f"it ended: {last_words(errors)}")
    found: dict[str, Any] = json.loads(line)
    if "error" in found:
        raise Unavailable(found["error"])
    return found


def last_words(errors: Path) -> str:
    return (errors.read_text("utf-8", "replace").splitlines() or ["no word"])[-1][:200]


def theirs(peer: Process) -> list[Reader]:
    def row(parser: str, form: str) -> Reader:
        def cost(pieces: list[str]) -> float:
            return float(peer.ask(parser, pieces, "time")["seconds"])

        def arguments(pieces: list[str]) -> list[str]:
            return list(peer.ask(parser, pieces, "watch")["fragments"])

        return Reader(f"{peer.name} {peer.version}, {parser}", form, cost, arguments)

    return [row(parser, form) for parser, form in FORMS.items()]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

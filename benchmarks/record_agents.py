"""Records what Codex, Claude Code and opencode ask of an engine: `python -m benchmarks.record_agents`.

Runs each client, unpatched and configured as docs/clients says, on a small project: two messages of the user, each with
a few calls of the client's shell, which really run. The engine is scripted; what it is asked goes into agents.jsonl.gz,
without paths, dates and ids of this machine. The clients' instructions are their makers': each word of them is replaced
by a common one of its length, always the same, so their shape and size stay.

Needs the clients: `scripts/clients node`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.agents import DATA, ROOT
from tests.api.asking import said
from tests.clients.pages import configured
from tests.gateway.double import Exchange, chunk
from tests.gateway.running import running

Json = dict[str, Any]

STEPS = (
    (
        "Why does the test fail? Look, and repair it.",
        ("ls", "cat shop.py", "cat test_shop.py", "python3 -c 'import test_shop'"),
    ),
    ("Now write a test for empty baskets.", ("sed -n 1,40p shop.py", "grep -n total test_shop.py shop.py")),
)
"""The user's messages, and the commands that the model runs for each."""

ITEMS = "\n".join(f'    "item {number}": {number * 7 % 13},' for number in range(24))
PROJECT = {
    "shop.py": f'''"""Prices, and baskets of a shop."""

PRICES = {{
{ITEMS}
}}


class Basket:
    """What a customer wants to buy."""

    def __init__(self):
        self.items = []

    def add(self, name, count=1):
        """Raises KeyError for an unknown item."""
        PRICES[name]
        self.items.append((name, count))

    def total(self):
        """In coins, with the discount of large baskets."""
        total = sum(PRICES[name] * count for name, count in self.items)
        return total - total // 20 if total > 100 else total
''',
    "test_shop.py": '''"""Tests of shop.py."""

from shop import PRICES, Basket


def filled(**items):
    basket = Basket()
    for name, count in items.items():
        basket.add(name.replace("_", " "), count)
    return basket


def test_total():
    assert filled(item_1=2, item_2=1).total() == 15


def test_discount():
    basket = filled(item_5=20, item_7=2)
    assert basket.total() == 20 * PRICES["item 5"]


test_total()
test_discount()
''',
}
CLAUDE_TOOLS = ("--allowedTools", "Bash")


@dataclass(frozen=True)
class Client:
    """page: of docs/clients. first, more: the commands of the user's first message and of the next ones. call: of the
    client's shell."""

    page: str
    first: tuple[str, ...]
    more: tuple[str, ...]
    call: Callable[[str], str]


CLIENTS = {
    "codex": Client(
        "codex",
        ("codex", "exec", "--skip-git-repo-check", "--json"),
        ("codex", "exec", "resume", "--last", "--skip-git-repo-check", "--json"),
        lambda command: f"exec_command(cmd={command!r})",
    ),
    "claude-code": Client(
        "claude-code",
        ("claude", *CLAUDE_TOOLS, "-p"),
        ("claude", *CLAUDE_TOOLS, "--continue", "-p"),
        lambda command: f'Bash(command={command!r}, description="Look")',
    ),
    "opencode": Client(
        "opencode",
        ("opencode", "run"),
        ("opencode", "run", "--continue"),
        lambda command: f'bash(command={command!r}, description="Look")',
    ),
}


def script(client: Client) -> Callable[[Exchange], Any]:
    calls = [client.call(command) for _, commands in STEPS for command in commands]
    firsts = [sum(len(commands) for _, commands in STEPS[:index]) for index in range(len(STEPS))]

    async def answer(exchange: Exchange) -> None:
        asked = exchange.json
        past = [message["role"] for message in asked["messages"]]
        results, texts = past.count("tool"), sum(STEPS[0][0] in str(m["content"]) for m in asked["messages"])
        message = sum(any(words in str(m["content"]) for m in asked["messages"]) for words, _ in STEPS) - 1
        goes_on = texts and message >= 0 and results < firsts[message] + len(STEPS[message][1])
        if asked.get("tools") and goes_on:
            mark = chunk("<|tool_call_start|>"), chunk(f"[{calls[results]}]"), chunk("<|tool_call_end|>")
            await said(chunk("I look. "), *mark)(exchange)
        else:
            await said(chunk("The discount of the second test was wrong; it is repaired."))(exchange)

    return answer


async def record(name: str, binaries: Path, folder: Path) -> list[Json]:
    """The bodies that the engine got, in order."""
    client = CLIENTS[name]
    project, home = folder / "project", folder / "home"
    for place in (project, home):
        place.mkdir(parents=True)
    for file, text in PROJECT.items():
        (project / file).write_text(text)
    async with running(script(client), tool_call_format="pythonic") as gateway:
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", "TZ": "UTC", "PYTHONDONTWRITEBYTECODE": "1",
            **{f"XDG_{kind.upper()}_HOME": str(home / kind) for kind in ("config", "data", "cache", "state")},
            **configured(client.page, gateway.url, "m", home),
        }  # fmt: skip
        for index, (words, _) in enumerate(STEPS):
            command = client.more if index else client.first
            process = await asyncio.create_subprocess_exec(
                str(binaries / command[0]), *command[1:], words, cwd=project, env=environment,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=sys.stderr,
            )  # fmt: skip
            assert await process.wait() == 0, name
        return [exchange.json for exchange in gateway.engine.requests]


ANONYMOUS: tuple[tuple[str, str], ...] = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "00000000-0000-4000-8000-000000000000"),
    (r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? [A-Z][a-z]{2,8} \d\d?,? \d{4}", "Thu Jan 01 2026"),
    (r"\b20\d\d-\d\d-\d\d\b", "2026-01-01"),
    (r"\b20\d\d/\d\d/\d\d\b", "2026/01/01"),
    (r"Linux \d+\.\d+[\w.+-]*", "Linux 6.1"),
    (r"\b(ses|msg|prt|call|toolu|chatcmpl|resp|fc)_[0-9A-Za-z]{8,}", r"\1_00000000"),
)


def anonymous(text: str, folder: Path) -> str:
    for place in sorted({str(folder), os.path.realpath(folder)}, key=len, reverse=True):
        text = text.replace(place, "/home/user")
        text = text.replace(place.replace("/", "-"), "-home-user")
    text = text.replace(str(ROOT), "/opt/ctxgate")
    for pattern, instead in ANONYMOUS:
        text = re.sub(pattern, instead, text)
    return text


WORDS = re.findall(
    r"\w+",
    """
a I at be by do go in is it no of on or so to up we all and any are but can day end few for get how its let may new not
now old one our out own per put run see set six ten the too try two use was way who why yes you also area back been best
both call case come copy does done down each even ever file find five form four free from full give good hand hard have
help here high hold home idea into just keep kind know last left less like line list long look made make many more most
move much must name near need next note only open over page part plan read rest room same save seem send show side size
some sort stay such sure take tell test text than that them then they this time turn type unit upon used user very view
want week well were what when will with word work year your about above after again along begin below bring carry cause
check class clear close could count cover early eight empty enter event every exact false field final first found front
given great group house input issue known large later learn least leave level light limit local lower match maybe means
might model month named never night order other owner paper place plain point price quick quite range reach ready right
round scale seven shall shape share short shown since small sound space speak stand start state still store table taken
their there these thing think third three title today total under until usual value watch where which while whole words
world would write accept across action advice always amount answer around arrive before begins behind better beyond
cannot change chosen common copied create decide detail during either enough entire expect extend figure follow format
function general happens however include instead language material message mentions multiple national nothing numbers
original otherwise particular possible practice previous probably question relative required response returned sentence
separate shoulder sometimes something somewhere statement structure telephone therefore together understand university
""",
)
_OF_LENGTH: dict[int, list[str]] = {}
for _word in WORDS:
    _OF_LENGTH.setdefault(len(_word), []).append(_word)


def disguised(text: str) -> str:
    """The text with other words: each always becomes the same one of its length, or of a length that there is."""

    def other(found: re.Match[str]) -> str:
        words = _OF_LENGTH[min(len(found[0]), max(_OF_LENGTH))]
        word = words[sum(found[0].lower().encode()) % len(words)]
        return word.capitalize() if found[0][0].isupper() else word

    return re.sub(r"[A-Za-z]+", other, text)


def without_words(body: Json) -> Json:
    """The request with its client's own words replaced: system messages, what it adds to the user's, descriptions."""
    ours = {text for text, _ in STEPS}

    def said(message: Json) -> Json:
        content = message.get("content")
        if message["role"] in ("assistant", "tool") or content is None:
            return message
        parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
        return {**message, "content": "\n".join(part if part in ours else disguised_around(part) for part in parts)}

    def disguised_around(text: str) -> str:
        pieces = re.split("(" + "|".join(map(re.escape, ours)) + ")", text)
        return "".join(piece if piece in ours else disguised(piece) for piece in pieces)

    def described(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: disguised(inner) if key == "description" and isinstance(inner, str) else described(inner)
                for key, inner in value.items()
            }
        return [described(inner) for inner in value] if isinstance(value, list) else value

    return {"messages": [said(message) for message in body["messages"]], "tools": described(body["tools"])}


def turns(name: str, bodies: list[Json], folder: Path) -> Iterator[Json]:
    """What each request adds: `keep` messages of the one before stay; `tools` only if they changed."""
    before: dict[str, Json] = {}
    for body in bodies:
        body = json.loads(anonymous(json.dumps({key: body.get(key) for key in ("messages", "tools")}), folder))
        body = without_words(body)
        kind = "main" if body["tools"] else "side"
        past = before.get(kind, {"messages": [], "tools": None})
        keep = 0
        for old, new in zip(past["messages"], body["messages"], strict=False):
            if old != new:
                break
            keep += 1
        turn = {"client": name, "kind": kind, "keep": keep, "messages": body["messages"][keep:]}
        if body["tools"] != past["tools"]:
            turn["tools"] = body["tools"]
        before[kind] = body
        yield turn


async def main() -> None:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    clients = Path(os.environ.get("CTXGATE_CLIENTS") or Path(cache) / "ctxgate/clients")
    lines = []
    for name in CLIENTS:
        with tempfile.TemporaryDirectory() as folder:
            bodies = await record(name, clients / "node/node_modules/.bin", Path(folder))
            found = [*turns(name, bodies, Path(folder))]
        sys.stderr.write(f"{name}: {len(found)} requests, {[turn['kind'][0] + str(turn['keep']) for turn in found]}\n")
        lines += [json.dumps(turn, ensure_ascii=False) for turn in found]
    DATA.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


if __name__ == "__main__":
    asyncio.run(main())

"""The command line of an executed object: options, and where its input comes from. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gateway.errors import ProviderInvalidRequest
from gateway.features.ctx.objects import Kind

Form = Literal["text", "jsonl"]
StandardStream = Literal["t", "p", "f", "o", "x"]
"""What a standard stream of the caller is: a terminal, a pipe, a file that isn't empty, something else, closed."""

STDIN = "-"

OPTIONS = """\
  -t, --text       print the answer as text (default on a terminal, or with CTX_FORMAT=text)
  --jsonl          print the stream of events, one JSON object a line (default elsewhere)
  -f FILE          add a file to the input; - as a word adds standard input
  -h, --help       print this text
  --version        print ctxgate's version
  --               treat the rest as input
Options stand before the input, or behind it.
"""
MODEL_OPTIONS = """\
  --system TEXT    begin with this system message
  --schema SCHEMA  answer with JSON that conforms to SCHEMA: JSON Schema, or the name of a file with one
"""
CODES = (
    "exit codes: 0 success, 1 generic error, 2 bad input, 13 permission denied, 69 gateway unavailable, "
    "70 internal error\n"
)

USAGES: dict[Kind, str] = {
    "model": f"""\
usage: {{name}} [OPTION ...] [INPUT ...]

Asks the model once. The input is INPUT or standard input: text, or JSON with "messages". Without either, on a
terminal, starts a conversation. A model that hears takes one file of sound (-f, or standard input); one that speaks or
draws writes sound, or a picture, to standard output.

{OPTIONS}{MODEL_OPTIONS}
examples:
  {{name}} "Why is the sky blue?"
  git diff | {{name}} "Write a commit message." -
  {{name}} -t -f notes.txt "Summarize this."

{CODES}""",
    "agent": f"""\
usage: {{name}} [OPTION ...] [TASK ...]

Gives the agent a task. The task is TASK or standard input: text, or JSON such as {{{{"task": "..."}}}}. It works in
this folder, with the tools in {{name}}.d/tools. Without a task, on a terminal, starts a session.

{OPTIONS}
{CODES}""",
    "tool": f"""\
usage: {{name}} [OPTION ...] [ARGUMENTS]

{{about}}

ARGUMENTS, or standard input, is a JSON object. The tool runs in this folder, under {{name}}.d/policy.

{OPTIONS}
{CODES}""",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Where an object was executed. streams: what its standard input, output and error are."""

    name: str
    """The last component of the path as it was executed."""
    folder: str
    streams: tuple[str, str, str] = ("o", "o", "o")
    form: str = ""
    """$CTX_FORMAT."""

    @property
    def on_terminal(self) -> bool:
        return self.streams[:2] == ("t", "t")


@dataclass(slots=True)
class Command:
    """A parsed command line. parts: of the input, in order: words, or the name of a file (`-`: standard input)."""

    form: Form
    asked: Literal["run", "help", "version"] = "run"
    system: str | None = None
    schema: str | None = None
    parts: list[Words | File] = field(default_factory=list)

    @property
    def reads_stdin(self) -> bool:
        return File(STDIN) in self.parts


@dataclass(frozen=True, slots=True)
class Words:
    text: str


@dataclass(frozen=True, slots=True)
class File:
    path: str


def parse(kind: Kind, arguments: Sequence[str], caller: Caller) -> Command:
    """Parses a command line. Options stand before the input or behind it; `-` and `-f FILE` may stand anywhere. A word
    within the input is input, whatever it begins with.

    Raises ProviderInvalidRequest for an unknown option, and for one without its value.
    """
    command = Command(_form(caller))
    left = list(arguments)
    words: list[str] = []
    raw = False
    while left:
        word = left.pop(0)
        if raw or not word.startswith("-"):
            words.append(word)
        elif word == "--":
            raw = True
        elif word in (STDIN, "-f", "--file"):
            _flush(command, words)
            command.parts.append(File(STDIN if word == STDIN else _value(word, left)))
        else:
            within = bool(command.parts or words) and not _ends_with_options(kind, [word, *left])
            if within or not _option(kind, command, word, left):
                words.append(word)
    _flush(command, words)
    if command.asked == "run" and not command.parts:
        command.parts.append(File(STDIN))
    return command


def _flush(command: Command, words: list[str]) -> None:
    if words:
        command.parts.append(Words(" ".join(words)))
        words.clear()


def _ends_with_options(kind: Kind, left: Sequence[str]) -> bool:
    """Whether there is nothing left but options that are known, and files."""
    scratch, rest = Command("text"), list(left)
    try:
        while rest:
            word = rest.pop(0)
            if word in ("-f", "--file"):
                _value(word, rest)
            elif word != STDIN and (not word.startswith("-") or not _option(kind, scratch, word, rest)):
                return False
    except ProviderInvalidRequest:
        return False
    return True


def _option(kind: Kind, command: Command, word: str, left: list[str]) -> bool:
    """Reads an option; False for a word that only begins with a minus, such as -5."""
    match word:
        case "-t" | "--text":
            command.form = "text"
        case "--jsonl":
            command.form = "jsonl"
        case "-h" | "--help":
            command.asked = "help"
        case "--version":
            command.asked = "version"
        case "--system" if kind == "model":
            command.system = _value(word, left)
        case "--schema" if kind == "model":
            command.schema = _value(word, left)
        case _:
            option = word[:2] == "--" or (len(word) == 2 and word[1].isalpha())
            if option:
                raise ProviderInvalidRequest(f"unknown option {word}; --help lists them, and -- begins the input")
            return False
    return True


def _value(option: str, left: list[str]) -> str:
    if not left:
        raise ProviderInvalidRequest(f"{option} needs a value")
    return left.pop(0)


def _form(caller: Caller) -> Form:
    if caller.form in ("text", "jsonl"):
        return "text" if caller.form == "text" else "jsonl"
    return "text" if caller.streams[1] == "t" else "jsonl"


def ignored_stdin(command: Command, caller: Caller) -> str | None:
    """A warning if something is piped into a command that doesn't read it; else None."""
    if command.asked != "run" or command.reads_stdin or caller.streams[0] not in "pf" or caller.streams[2] != "t":
        return None
    return f"{caller.name}: standard input isn't part of the input: add - where it belongs"


def joined(texts: Sequence[tuple[Words | File, str]]) -> str:
    """The whole input: words and files, each file a paragraph of its own."""
    if len(texts) == 1:
        return texts[0][1]
    return "\n\n".join(text.strip("\n") for _, text in texts if text.strip())

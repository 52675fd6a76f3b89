"""`ctxgate model-test` and `scripts/model-test`: their commands and options, and the exit code of each outcome."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace as Options
from typing import Any, cast

import click

from gateway.cli.ending import exit_quietly
from gateway.cli.options import FILE, Command, Finite, Group
from gateway.cli.text import say
from gateway.config import ConfigError
from gateway.errors import GatewayError
from gateway.features.evaluation.model_test import VERSION, commands, compare, fake, results, run
from gateway.features.evaluation.model_test.answers import read_json
from gateway.features.evaluation.model_test.cases import BadSuite
from gateway.features.evaluation.model_test.commands import (
    BASELINES,
    INTERRUPTED,
    NOT_COMPARABLE,
    UNREACHABLE,
    USAGE,
    WrongCommand,
)

EPILOG = """\
examples:
  ctxgate model-test                                   core, against the newest baseline that fits
  ctxgate model-test --suite smoke --serve --model qwen3-4b
  ctxgate model-test --serve --thresholds              which call_threshold passes most
  ctxgate model-test baseline save                     keep the last run as a baseline
  ctxgate model-test compare old runs/model-test/NEW
  ctxgate model-test selfcheck                         no endpoint needed

exit codes:
  0    no regression, or no baseline and no target missed
  1    a regression, a missed target, or a failure of a case that must pass
  2    wrong command line, suite or baseline file
  3    the endpoint can't be reached or doesn't have the model
  4    too many questions without an answer: no score
  5    the baseline was asked or judged in another way
  6    calls came out as text, without a regression or a missed target: the output says what to try
       (without a baseline, cases that must pass may have failed for that)
  130  interrupted; the same command with the same --out resumes
"""


class Option(click.Option):
    """An option in a section of the help."""

    def __init__(self, *names: Any, section: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section = section


class Sections(Command):
    """A command whose help lists its options section by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = [param for param in self.get_params(ctx) if isinstance(param, click.Option) and not param.hidden]
        for section, params in itertools.groupby(shown, lambda param: getattr(param, "section", "options")):
            with formatter.section(section):
                formatter.write_dl([record for param in params if (record := param.get_help_record(ctx))])


Decorator = Callable[[Any], Any]


def section(name: str) -> Callable[..., Decorator]:
    """A maker of options for this section."""

    def option(*names: str, help: str | None = None, **settings: Any) -> Decorator:
        return click.option(*names, cls=Option, section=name, help=help, **settings)

    return option


def all_of(*options: Decorator) -> Decorator:
    """The options as one decorator, in this order."""

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1
    if not 0 <= value <= 100:
        raise click.BadParameter(f"{text} is not a percentage")
    return value


def fields(text: str) -> Any:
    try:
        found = read_json(text)
    except ValueError as error:
        raise click.BadParameter(f"it isn't JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.BadParameter("it isn't a JSON object")
    return found


def minimum(text: str) -> tuple[str, float]:
    name, _, share = text.partition("=")
    return name, percent(share)


COUNT = click.IntRange(min=1)

target = section("what to test")
cases = section("what to ask")
how = section("how to ask")
running = section("running")
rules = section("what is a regression")
gate = section("the baseline")
output = section("output")

baselines_option = click.option("--baselines", type=FILE, default=BASELINES, metavar="DIR", hidden=True)

TARGET = all_of(
    target("--base-url", metavar="URL", help="With /v1 (default: OPENAI_BASE_URL, else config.yaml's)."),
    target("--api-key-env", metavar="NAME", help="Variable with the key (default: config.yaml's, else see the docs)."),
    target("--model", metavar="ID", help="Default: the active model, else the only one."),
    target("--header", multiple=True, metavar="NAME=VALUE", help="Header of each request; repeatable."),
    target("--serve", is_flag=True, help="Start a gateway for this run."),
    target("--config", type=FILE, metavar="FILE", help="A configuration instead of _models/config.yaml."),
    target("--fake", metavar="MODE", help="No model: oracle, never, always, noisy:0.1, leaky, broken-json."),
)
CASES = all_of(
    cases("--suite", multiple=True, metavar="NAME", help="smoke, core, bfcl-mini, bfcl or a folder."),
    cases("--category", multiple=True, metavar="NAME", help="Only these categories; repeatable."),
    cases("--case", multiple=True, metavar="GLOB", help="Only these ids, as `list --cases` shows them."),
    cases("--tag", multiple=True, metavar="NAME", help="Only cases with this tag."),
    cases("--limit", type=COUNT, metavar="N", help="At most N cases; a smaller choice is part of a larger one."),
    cases("--seed", type=int, default=0, metavar="N", help="Changes which cases --limit chooses."),
)
HOW = all_of(
    how("--temperature", type=Finite(0), default=0.0, metavar="T", help="Default: 0."),
    how("--top-p", type=Finite(0, 1), default=1.0, metavar="P", help="Default: 1."),
    how("--max-tokens", type=COUNT, default=1024, metavar="N", help="The most tokens of an answer (default: 1024)."),
    how("--system-prompt", metavar="FILE", help="A system message before each conversation."),
    how("--tool-choice", type=click.Choice(["auto", "required"]), default="auto", help="For cases that name none."),
    how("--names", type=click.Choice(["dotted", "underscore"]), help="Default: dotted for ctxgate, else underscore."),
    how("--stream", type=click.Choice(["off", "on", "both"]), default="off", help="both: ask each case twice."),
    how(
        "--thinking",
        type=click.Choice(["on", "off", "default"]),
        default="default",
        help="chat_template_kwargs.enable_thinking",
    ),
    how("--extra-body", type=fields, default="{}", metavar="JSON", help="More fields for each request."),
    how("--thresholds", is_flag=True, help="Ask for calls, then for words: what does each call_threshold pass?"),
    how("--bfcl-compat", is_flag=True, help="Add BFCL's hints to the tools."),
)
RUNNING = all_of(
    running("--concurrency", type=COUNT, default=1, metavar="N", help="Cases at once; no times are reported above 1."),
    running(
        "--timeout",
        type=Finite(0, min_open=True),
        default=120.0,
        metavar="SECONDS",
        help="Time limit for one whole answer (default: 120).",
    ),
    running("--retries", type=click.IntRange(0), default=2, metavar="N", help="Of a failed request (default: 2)."),
    running("--repeat", type=COUNT, default=1, metavar="N", help="Run the suite N times; the first one counts."),
    running("--aa", is_flag=True, help="Run it twice, to see how much the model differs from itself."),
    running("--warmup", type=COUNT, default=1, metavar="N", help="Questions before the first case."),
    running("--fresh", is_flag=True, help="Set aside the samples in --out and start over."),
    running("--max-error-rate", type=percent, default="2", metavar="PCT", help="No score above this (default: 2)."),
)
RULES = all_of(
    rules("--alpha", type=Finite(0, 1), default=0.05, metavar="P", help="Significance level (default: 0.05)."),
    rules("--margin", type=Finite(0), default=2.0, metavar="PTS", help="Smallest drop that counts (default: 2)."),
    rules("--noninferiority", type=Finite(0), metavar="PTS", help="Pass only if shown to be less than this worse."),
    rules("--min", multiple=True, type=minimum, metavar="CATEGORY=PCT", help="Lowest share allowed; repeatable."),
    rules("--targets", type=click.Choice(["localcowork"]), help="select 90, chain 80, abstain+missing-param 85."),
    rules("--gate-latency", is_flag=True, help="Count slower answers as a regression, too."),
    rules("--allow-mismatch", is_flag=True, help="Compare the common part of runs asked in different ways."),
)
OUTPUT = all_of(
    output("--out", type=FILE, metavar="DIR", help="Folder (default: a new one below runs/model-test)."),
    output(
        "--save-baseline",
        is_flag=False,
        flag_value="",
        metavar="NAME",
        help="Save this run as a baseline (default name: the model's).",
    ),
    output("--json", is_flag=True, help="Print the results as JSON instead of the table."),
    output("--no-html", is_flag=True, help="Write no report.html."),
    output("--no-png", is_flag=True, help="Write no report.png."),
    output("--quiet", is_flag=True, help="Show no progress."),
    output("--dry-run", is_flag=True, help="Only list what would be asked."),
)


@click.group(cls=Group, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message="model-test %(version)s")
def root() -> None:
    """Tests how well a model calls tools, and whether it does so worse than the one before."""


@root.command("run", cls=Sections)
@TARGET
@CASES
@HOW
@RUNNING
@RULES
@gate("--baseline", default="auto", metavar="NAME", help="auto, none, a saved one's name, or a path.")
@OUTPUT
@baselines_option
def run_suite(**options: Any) -> int:
    """Runs a suite (the default command)."""
    return commands.test(Options(**options))


@root.command("compare", cls=Sections)
@RULES
@output("--html", type=FILE, metavar="FILE", help="Write the report to this file.")
@output("--json", is_flag=True, help="Print the outcome as JSON.")
@baselines_option
@click.argument("baseline", type=FILE, metavar="BASELINE", help="A saved baseline's name or file, or a run's folder.")
@click.argument("candidate", type=FILE, metavar="CANDIDATE", help="The same for the other model.")
def compare_results(**options: Any) -> int:
    """Compares two results."""
    return commands.compare_two(Options(**options))


@root.command("baseline")
@click.option("--from", "source", type=FILE, metavar="DIR", help="The run to save (default: the last one).")
@baselines_option
@click.argument("action", type=click.Choice(["save", "list", "show", "rm"]), help="What to do.")
@click.argument("name", required=False, metavar="[NAME]", help="Name of the baseline (default for save: the model's).")
def baseline(**options: Any) -> int:
    """Saves, lists, shows or removes baselines."""
    return commands.baselines(Options(**options))


@root.command("report")
@click.option("--baseline", type=FILE, metavar="PATH", help="Compare with this one.")
@baselines_option
@click.argument("run", type=FILE, metavar="RUN", help="The run's folder.")
def report(**options: Any) -> int:
    """Writes the reports of a run again."""
    return commands.report(Options(**options))


@root.command("list")
@click.option("--suite", multiple=True, metavar="NAME", help="Default: all suites.")
@click.option("--cases", is_flag=True, help="List each case with its question.")
def list_suites(**options: Any) -> int:
    """Lists suites, categories and cases."""
    return commands.list_suites(Options(**options))


@root.command("fetch")
@click.argument("what", type=click.Choice(["bfcl"]), help="BFCL's wheel, from the package index.")
def fetch(**options: Any) -> int:
    """Fetches what isn't part of the repository."""
    return commands.fetch(Options(**options))


@root.command("selfcheck")
@click.option("--suite", multiple=True, metavar="NAME", help="Default: core, and bfcl if it was fetched.")
def selfcheck(**options: Any) -> int:
    """Checks the judge against right and wrong answers."""
    return commands.selfcheck(Options(**options))


def main(argv: Sequence[str] | None = None, name: str = "scripts/model-test") -> int:
    """Runs a command line, sys.argv by default. Returns the exit code. name: as which it was called."""
    words = with_command(list(sys.argv[1:] if argv is None else argv))
    try:
        with root.make_context(name, words) as context:
            return cast(int, root.invoke(context))
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (WrongCommand, BadSuite, results.BadResult, fake.BadMode, run.OtherRun, ConfigError) as error:
        return _end(USAGE, error)
    except GatewayError as error:
        return _end(USAGE if error.exit_code == ConfigError.exit_code else UNREACHABLE, error)
    except OSError as error:
        if error.filename is None:
            raise  # of a stream
        return _end(USAGE, f"{error.filename}: {error.strerror}")
    except run.Unreachable as error:
        return _end(UNREACHABLE, error)
    except compare.NotComparable as error:
        cure = "--allow-mismatch compares what is left"
        return _end(NOT_COMPARABLE, f"the two can't be compared:\n{error}\n{cure}")
    except KeyboardInterrupt:
        return INTERRUPTED


def with_command(words: list[str]) -> list[str]:
    """The words with `run` where they name no command."""
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        return ["run", *words]
    return words


def _end(code: int, message: object) -> int:
    say(f"model-test: {message}", file=sys.stderr)
    return code


@click.command(
    "model-test",
    cls=Command,
    epilog=EPILOG,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND] [OPTION]...", help="`--help` lists them.")
def command(words: tuple[str, ...]) -> int:
    """Tests how well a model calls tools."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return main(words, "ctxgate model-test")


def program() -> int:
    """Ends as with Ctrl-C: what was answered is written, the gateway of --serve is ended."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_quietly(main)

"""`ctxgate swap`"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.cli.options import FILE, Command, Finite, config_option, configuration
from gateway.cli.text import say
from gateway.config.edit import with_active_model, write
from gateway.errors import ProviderInvalidRequest, ProviderModelNotLoaded

if TYPE_CHECKING:
    from gateway.config import Config, Model

EXAMPLES = """\
examples:
  ctxgate swap qwen3-4b
  ctxgate swap qwen3-4b --gate smoke
  ctxgate swap qwen3-4b --gate traffic --days 3   replays what the running gateway recorded (log: {bodies: true})
  ctxgate swap qwen3-4b --baseline lfm25-1.2b
  ctxgate swap qwen3-4b --options="--stream both --targets localcowork"

exit codes are those of `ctxgate model-test`: 0 promoted, 1 a regression or a missed target, 2 wrong command line,
3 a model that doesn't answer, 4 too many questions without an answer or too few recorded, 5 nothing comparable
"""

TRAFFIC = "traffic"
"""The gate that replays recorded requests."""

MODEL_TEST = (sys.executable, "-m", "gateway.cli.model_test")

CALLS_AS_TEXT = 6
PASSED = (0, CALLS_AS_TEXT)
"""Exit codes of a run without a regression: the table judges calls that came out as text, too."""

NOT_COMPARABLE = 5

MEASURED = (*PASSED, 1)
"""Exit codes of a run that has scores. The active model may miss targets; it only needs scores."""


ASK_NOTHING = frozenset({"--dry-run", "--help", "-h", "--thresholds"})
"""Options of model-test that end well without a score."""


@dataclass(frozen=True)
class Test:
    """A run of `scripts/model-test` over one suite, which serves the model itself.

    stdout: where its table goes, as for subprocess; None: to our own.
    """

    source: Path
    suite: str
    options: tuple[str, ...] = ()
    stdout: int | None = None

    def run(self, model: Model, out: Path, baseline: str) -> int:
        """Returns the exit code of scripts/model-test."""
        say(f"\n{model.name}: {self.suite}", file=sys.stderr)
        # The last of two equal options counts, which is ours.
        command = [*MODEL_TEST, "run", *self.options, "--serve", "--config", str(self.source)]
        command += ["--model", model.name, "--suite", self.suite, "--baseline", baseline, "--fresh"]
        command += ["--out", str(out.resolve())]
        with subprocess.Popen(command, stdout=self.stdout) as process:  # noqa: S603
            # The run has to stop its gateway, so it gets SIGTERM and time, never SIGKILL.
            before = signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
            try:
                code = process.wait()
                # As shells report a signal. SIGINT can end a run even where it catches KeyboardInterrupt, for instance
                # while Python executes the source of a dataclass.
                return code if code >= 0 else 128 - code
            except KeyboardInterrupt:  # the run received it too
                process.wait()
                return 130
            finally:
                signal.signal(signal.SIGTERM, before)


def _words(text: str) -> tuple[str, ...]:
    words = tuple(shlex.split(text))
    if (without := next((word for word in words if word in ASK_NOTHING), None)) is not None:
        raise click.BadParameter(f"a run with {without} has no score")
    return words


@contextmanager
def beside(config: Config, text: bytes) -> Iterator[Path]:
    """A file with this text beside config.yaml, so that its paths mean the same."""
    made = config.source.with_name(f".tune-{os.getpid()}.yaml")
    try:
        made.write_bytes(text)
        yield made
    finally:
        made.unlink(missing_ok=True)


@click.command(cls=Command, epilog=EXAMPLES)
@config_option
@click.option(
    "--gate",
    default="core",
    metavar="SUITE",
    help="smoke, core, bfcl-mini, bfcl, a folder, or traffic: recorded requests (default: core).",
)
@click.option("--days", type=Finite(0, min_open=True), default=7.0, help="traffic: how old requests may be.")
@click.option(
    "--limit", type=click.IntRange(1), default=1000, help="traffic: how many requests to replay, the newest first."
)
@click.option("--worst", type=click.IntRange(0), default=5, help="traffic: how many differences to show (default: 5).")
@click.option("--send-conversations", is_flag=True, help="traffic: recorded requests may leave this machine.")
@click.option("--baseline", metavar="NAME", help="Results of the active model, saved or a path (default: test it now).")
@click.option("--out", type=FILE, metavar="DIR", help="Folder for the results (default: below runs/swap).")
@click.option(
    "--options", type=_words, default="", metavar="TEXT", help="Options of `ctxgate model-test` for both runs."
)
@click.argument("model", metavar="MODEL", help="The candidate, a model of config.yaml.")
def swap(
    config: Path | None,
    gate: str,
    baseline: str | None,
    out: Path | None,
    options: tuple[str, ...],
    model: str,
    **traffic: Any,
) -> int:
    """Makes another model the active one, unless it calls tools worse.

    Asks both models the same questions, through a second gateway beside any running one. If there is no regression,
    changes active_model in config.yaml and nothing else in the file; otherwise changes nothing.

    With --gate traffic, the questions are requests of clients to the active model, recorded while config.yaml had log:
    {bodies: true}. They don't leave this machine.
    """
    loaded = configuration(config, create=True)
    active, candidate = loaded.resolve(None), loaded.resolve(model, "chat")
    if candidate.name == active.name:
        say(f"{active.name} is the active model already")
        return 0
    for each in (active, candidate) if baseline is None else (candidate,):
        _check_weights(each)
    _check_port(candidate)
    before = loaded.source.read_bytes()
    after = with_active_model(before, candidate.name)  # fails now if the file can't be changed after the tests
    if gate == TRAFFIC:
        code = _by_traffic(loaded, active, candidate, baseline, **traffic)
    else:
        code = _by_suite(loaded, active, candidate, gate, baseline, out, options)
    if code:
        return code
    write(loaded.source, before, after, lambda made: made.active_model == candidate.name)
    say(f"\n{candidate.name} is the active model now: {loaded.source}")
    say(f"a running gateway switches to it by itself; to go back: ctxgate swap {active.name}")
    return 0


def _by_traffic(
    config: Config,
    active: Model,
    candidate: Model,
    baseline: str | None,
    *,
    days: float,
    limit: int,
    worst: int,
    send_conversations: bool,
) -> int:
    from gateway.features.evaluation.commands import swap_traffic

    if baseline is not None:
        raise ProviderInvalidRequest("--baseline is for suites; --gate traffic always asks the active model again")
    return swap_traffic.gate(config, active, candidate, days=days, limit=limit, worst=worst, send=send_conversations)


def _by_suite(
    config: Config,
    active: Model,
    candidate: Model,
    suite: str,
    baseline: str | None,
    out: Path | None,
    options: tuple[str, ...],
) -> int:
    """Returns the exit code of scripts/model-test, after saying why the candidate doesn't pass."""
    from gateway.features.evaluation.model_test.results import RESULTS
    from gateway.features.evaluation.model_test.target import RUNS

    out = out or RUNS / "swap" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    test = Test(config.source, suite, options)
    if baseline is None:
        baseline = str(out / active.name)
        code = test.run(active, out / active.name, "none")
        if code not in MEASURED:
            return _stays(code, active, f"{active.name} itself couldn't be tested")
    folder = out / candidate.name
    with suppress(NotADirectoryError):
        (folder / RESULTS).unlink(missing_ok=True)  # an earlier run's would pass for this one's
    code = test.run(candidate, folder, _absolute(baseline))
    if code not in PASSED:
        return _stays(code, active, f"{candidate.name} did not pass: see above, and {folder}")
    if not _compared(folder):
        return _stays(NOT_COMPARABLE, active, f"{candidate.name} was compared with no other model: see {folder}")
    return 0


def _compared(folder: Path) -> bool:
    """Whether the run has scores that were compared with another one's, and none was shown to be worse."""
    from gateway.features.evaluation.model_test.results import BadResult, read

    try:
        return bool(read(folder)["gate"]["verdict"] == "no regression shown")
    except (BadResult, LookupError, TypeError):
        return False


def _stays(code: int, active: Model, why: str) -> int:
    say(f"\n{why}\n{active.name} stays the active model; nothing changed", file=sys.stderr)
    return code


def _absolute(baseline: str) -> str:
    return str(Path(baseline).resolve()) if Path(baseline).exists() else baseline


def _check_weights(model: Model) -> None:
    if model.path is not None and not model.path.exists():
        cure = f"ctxgate pull {model.name}" if model.pull is not None else f"put it at {model.path}"
        raise ProviderModelNotLoaded(f"{model.name} isn't on this machine: {cure}")


def _check_port(candidate: Model) -> None:
    """Raises ProviderInvalidRequest if the candidate's port is taken: the test would ask that server instead."""
    if candidate.path is None or candidate.port is None:
        return
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex(("127.0.0.1", candidate.port)) == 0:
            raise ProviderInvalidRequest(
                f"another server holds port {candidate.port} of {candidate.name}, and the test would ask that one: "
                f"give {candidate.name} another port in config.yaml, or stop that server"
            )

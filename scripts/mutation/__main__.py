"""The command line of scripts/mutants."""

from __future__ import annotations

import signal

import click

from scripts.mutation.tools import ROOT, cache, install

NAMES = ("core", "request", "answer", "wire", "engines", "normalizers")

EXAMPLES = """\b
Examples:
  scripts/mutants                           200 mutants over all packages
  scripts/mutants --seed 7                  another sample
  scripts/mutants --only wire --sample 50   50 mutants of gateway/wire
  scripts/mutants --resume                  goes on after an interruption
  scripts/mutants --resume --retry          tries the survivors again, after a change of the tests
  scripts/mutants --resume --retry --budget 120   and gives them more tests
"""


@click.command(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed draws the same sample.")
@click.option("--sample", "size", type=click.IntRange(min=1), default=200, show_default=True, help="How many mutants.")
@click.option(
    "--only", metavar="PACKAGE", type=click.Choice(NAMES), multiple=True, help=f"Of {', '.join(NAMES)}; repeatable."
)
@click.option(
    "--budget", type=float, default=20.0, show_default=True, help="Seconds of tests for each mutant, at most."
)
@click.option("--resume", is_flag=True, help="Keep the results of an earlier run of this sample.")
@click.option("--retry", is_flag=True, help="With --resume: try that run's survivors again.")
@click.option("--list", "listed", is_flag=True, help="Print the sample and run nothing.")
def main(seed: int, size: int, only: tuple[str, ...], budget: float, resume: bool, retry: bool, listed: bool) -> None:
    """Puts small faults ("mutants") into copies of the code, runs the tests that can notice each, and prints the
    survivors as diffs and the score by package.

    cosmic-ray makes the mutants; coverage says which tests run which line. The first run installs both into the user's
    cache, which keeps results, too. The first run also runs the suite once under coverage, which takes minutes; later
    runs do so with new and changed test files alone. Two processes run the mutants. The checkout itself is never
    touched.
    """
    tools = install()
    # These need what was just installed.
    from scripts.mutation.draw import sample
    from scripts.mutation.session import Session

    packages = list(only or NAMES)
    specs = sample(ROOT, packages, size, seed)
    if listed:
        for spec in specs:
            place = f"{spec.module_path.as_posix()}:{spec.start_pos[0]}"
            click.echo(f"{place} {spec.definition_name or 'module'} {spec.operator_name}")
        return
    name = f"seed-{seed}-sample-{size}-{'-'.join(packages)}.sqlite"
    Session(cache() / "sessions" / name, tools, specs, packages, budget).run(resume=resume, retry=retry)


if __name__ == "__main__":
    # Ends as with Ctrl-C, also in the background: results stay, the tests' processes end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(prog_name="scripts/mutants")

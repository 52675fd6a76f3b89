"""`ctxgate self`"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway import __version__
from gateway.cli.options import Group, config_option, configuration
from gateway.config import ConfigError
from gateway.features.checks.findings import Finding, State, shown

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from gateway.config import Config

EXAMPLES = """\
examples:
  ctxgate self check
  ctxgate self check && ctxgate service install
"""

NAME = "ctxgate"
ALL = "all"
"""The extra that includes all others."""
OLDEST_PYTHON = (3, 11)
PACKAGES = ("gateway", "normalizers")
IMPORT_SECONDS = 120
"""Time limit for importing all packages: those of engines take seconds."""
FEW = 3
"""How many files to name; of further ones, only the number is shown."""
COMPILED = {"mlx": ("mlx.core",), "pydantic": ("pydantic",)}
"""What to import of packages that aren't compiled themselves, or whose name imports no compiled part."""
IMPORTS = """\
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        print("bad", name, type(error).__name__, str(error).split("\\n")[0][:200], sep="\\t", flush=True)
    else:
        print("ok", name, "", "", sep="\\t", flush=True)
"""


@click.group("self", cls=Group, epilog=EXAMPLES, invoke_without_command=True)
@click.pass_context
def itself(ctx: click.Context) -> int:
    """This installation of ctxgate. Without an action, `check`."""
    return 0 if ctx.invoked_subcommand is not None else int(ctx.invoke(check, config=None))


@itself.command("check")
@config_option
def check(config: Path | None) -> int:
    """Checks whether the installation is complete, and says how to fix each problem.

    Looks at the versions of Python and of all packages, the extras, whether what is compiled runs on this processor,
    ctxgate's own files, its folder and its port. `ctxgate doctor` looks at models and engines.
    """
    return shown(_findings(config))


def _findings(file: Path | None) -> Iterator[Finding]:
    yield from _python()
    try:
        itself = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        cure = f"install it: pip install '.[llama,hub]' or scripts/install in {Path(__file__).parents[2]}"
        yield Finding("wrong", NAME, f"{__version__} at {Path(__file__).parents[1]} isn't installed as a package", cure)
        return
    yield from _version(itself)
    yield from _packages(itself)
    yield from _files(itself)
    yield from _place(file)


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield Finding("wrong", "python", f"{version} at {sys.executable}", "ctxgate needs Python 3.11 or newer")
    else:
        yield Finding("ok", "python", f"{version} at {sys.executable}")


def _version(itself: metadata.Distribution) -> Iterator[Finding]:
    where = Path(__file__).parents[2]
    if itself.version != __version__:
        text = f"the files are {__version__}, but {itself.version} is installed: {where}"
        yield Finding("wrong", NAME, text, _install(itself, []))
    else:
        yield Finding("ok", NAME, f"{__version__} at {where}")
    command = shutil.which(NAME)
    if command is not None and not _own(Path(command)):
        cure = f"run {Path(sys.executable).with_name(NAME)}, or put its folder first on the PATH"
        yield Finding("note", "command", f"{command} on the PATH belongs to another installation", cure)


def _own(command: Path) -> bool:
    """Whether the script belongs to this environment: links to it (as pipx and uv do), or runs its Python."""
    if command.resolve().parent == Path(sys.executable).parent.resolve():
        return True
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return sys.executable in command.read_text("utf-8").split("\n", 1)[0]
    return False


def _packages(itself: metadata.Distribution) -> Iterator[Finding]:
    from packaging.requirements import Requirement

    needed = [Requirement(text) for text in itself.requires or ()]
    base = [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    present = list(base)
    yield from _installed(itself, base, "packages", [])
    whole, absent = [], []
    for extra in itself.metadata.get_all("Provides-Extra") or ():
        if extra == ALL:
            continue
        own = [one for one in needed if one not in base and one.marker and one.marker.evaluate({"extra": extra})]
        found = [one for one in own if _have(one) is not None]
        if own and not found:
            absent.append(extra)
        elif own:
            present += found
            faults = [fault for fault in _installed(itself, own, f"extra {extra}", [extra]) if fault.state != "ok"]
            yield from faults
            whole += [] if faults else [extra]
    text = f"{', '.join(whole) or 'none'} installed"
    yield Finding("ok", "extras", f"{text}; not installed: {', '.join(absent)}" if absent else text)
    yield from _imports(itself, present)


def _have(wanted: Requirement) -> str | None:
    """The installed version; None if there is none."""
    try:
        return metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return None


def _installed(
    itself: metadata.Distribution, wanted: Sequence[Requirement], about: str, extras: list[str]
) -> Iterator[Finding]:
    """Whether the packages are installed, in versions that ctxgate supports."""
    missing, others = [], []
    for one in wanted:
        version = _have(one)
        if version is None:
            missing.append(f"{one.name} is missing")
        elif not one.specifier.contains(version, prereleases=True):
            others.append(f"{one.name} {version} isn't {one.specifier}")
    if faults := [*missing, *others]:
        # What an extra has in common with something else makes no half of it.
        state: State = "note" if extras and not others else "wrong"
        yield Finding(state, about, "; ".join(faults), _install(itself, extras))
    else:
        yield Finding("ok", about, f"{len(wanted)} in the versions that ctxgate needs")


def _imports(itself: metadata.Distribution, wanted: Sequence[Requirement]) -> Iterator[Finding]:
    """Whether each compiled package can be imported here: in another process, which a wheel for another processor
    kills."""
    modules: dict[str, str] = {}
    packages = metadata.packages_distributions()
    names = {_plain(one.name): one.name for one in wanted if _compiled(one)}
    for module, owners in packages.items():
        for owner in owners:
            if _plain(owner) in names and module.isidentifier() and not module.startswith("_"):
                for part in COMPILED.get(_plain(owner), (module,)):
                    modules[part] = names[_plain(owner)]
    left, faults = sorted(modules), []
    while left:
        reached, end = _import(left)
        faults += [f"{modules[name]}: {why}" for name, why in reached.items() if why]
        left = left[len(reached) :]
        if left:
            faults.append(f"{modules[left[0]]}: importing {left[0]} {end}")
            left = left[1:]
    for fault in faults:
        package = fault.partition(":")[0]
        yield Finding("wrong", "import", fault, _install(itself, [], package))
    if not faults:
        yield Finding("ok", "import", f"the compiled parts of {len({*modules.values()})} packages load here")


def _compiled(one: Requirement) -> bool:
    if _have(one) is None:
        return False
    return _plain(one.name) in COMPILED or any(
        file.suffix in (".so", ".dylib") for file in metadata.distribution(one.name).files or ()
    )


def _import(modules: Sequence[str]) -> tuple[dict[str, str], str]:
    """The error of each import ("" for none), as far as the process got; and how the process ended."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", IMPORTS, *modules]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            command, capture_output=True, text=True, errors="replace", timeout=IMPORT_SECONDS, check=False
        )
        said, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        code = 0
    reached = {}
    for line in said.splitlines():
        parts = line.split("\t")
        if len(parts) == 4 and parts[1] in modules:
            reached[parts[1]] = f"{parts[2]}: {parts[3]}" if parts[0] == "bad" else ""
    if code == -signal.SIGILL:
        return reached, "dies of SIGILL: the wheel was built for another processor"
    if code < 0:
        return reached, f"dies of {signal.Signals(-code).name}"
    return reached, "doesn't end" if code == 0 else f"ends Python with exit code {code}"


def _files(itself: metadata.Distribution) -> Iterator[Finding]:
    from gateway.config import default

    gone, changed, count = [], [], 0
    for file in itself.files or ():
        where = Path(str(file.locate()))
        if file.hash is None or file.parts[0] not in PACKAGES:
            continue
        count += 1
        try:
            digest = hashlib.new(file.hash.mode, where.read_bytes()).digest()
        except OSError:
            gone.append(str(where))
            continue
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            changed.append(str(where))
    for what, found in (("missing", gone), ("changed", changed)):
        if found:
            more = f" and {len(found) - FEW} more" if len(found) > FEW else ""
            yield Finding("wrong", "files", f"{what}: {', '.join(found[:FEW])}{more}", _install(itself, []))
    try:
        default.shipped()
    except OSError as error:
        yield Finding("wrong", "files", f"the default configuration or the test model: {error}", _install(itself, []))
        return
    if not gone and not changed:
        yield Finding("ok", "files", f"all {count} as they were installed" if count else "those of the checkout")


def _place(file: Path | None) -> Iterator[Finding]:
    from gateway.features.checks.commands.doctor import disk, running

    try:
        loaded = configuration(file)
    except ConfigError as error:
        yield Finding("wrong", "config", str(error), "correct it: ctxgate check")
        return
    yield Finding("ok", "config", str(loaded.source))
    yield _writable(loaded)
    yield disk(loaded)
    yield from running(loaded)


def _writable(config: Config) -> Finding:
    folder = config.state_dir
    there = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return Finding("ok", "state", f"{folder} can be written")
    except OSError as error:
        text = f"{folder} can't be written: {error.strerror}"
        return Finding(
            "wrong", "state", text, f"let {os.getenv('USER') or os.getuid()} write there, or move state_dir:"
        )


def _install(itself: metadata.Distribution, extras: list[str], package: str | None = None) -> str:
    """The command that reinstalls ctxgate the way it was installed. package: only this one, if that is possible."""
    prefix = Path(sys.prefix)
    named = f"{NAME}[{','.join(extras)}]" if extras else NAME
    origin = json.loads(itself.read_text("direct_url.json") or "{}")
    # No index has ctxgate: it comes again from where it came from.
    whole = shlex.quote(f"{named} @ {origin['url']}" if "url" in origin else named)
    if origin.get("dir_info", {}).get("editable"):
        checkout = Path(__file__).parents[2]
        if extras:
            return (
                f"{shlex.quote(sys.executable)} -m pip install -e {shlex.quote(named.replace(NAME, str(checkout), 1))}"
            )
        again = f"in {checkout}: rm -f {prefix}/ctxgate-*; scripts/install"
        return (
            f"{shlex.quote(sys.executable)} -m pip install --force-reinstall --no-deps {package}" if package else again
        )
    if (prefix / "uv-receipt.toml").exists():
        return f"uv tool install --reinstall {whole}"
    if prefix.parent.name == "venvs" and (prefix / "pipx_metadata.json").exists():
        return f"pipx install --force {whole}"
    return f"{shlex.quote(sys.executable)} -m pip install --force-reinstall {package or whole}"


def _plain(name: str) -> str:
    """A package's name as indexes compare them."""
    return name.lower().replace("_", "-").replace(".", "-")

"""Chooses the format of a model that its configuration leaves open.

Marks in the template say what the format may be (`normalizers.detect`), the template's own renders whether it is: the
format has to read them back. A built-in format that does so wins; else one is derived from the template
(`normalizers.derive`); else the marks decide alone. A process renders the template, once: the result is kept in the
user's cache by the template's hash. Whatever goes wrong there changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

import normalizers
from gateway.backends.about import About
from gateway.config.folders import USER, whole
from gateway.schema.pool import ENVIRONMENT
from normalizers import Detection, FormatSpec, detect, registry
from normalizers.derive.history import History
from normalizers.read.dialects import DIALECTS

log = logging.getLogger("ctxgate")

SECONDS = 2.0
"""Processor time for one template. Of 120 real ones, the slowest takes 0.1 s."""
WALL_SECONDS = 10.0
"""Limit for one template on a busy machine, the process's start included."""
MAX_TEMPLATE = 1 << 20
"""Characters of a template. The largest real ones have 30,000."""
MAX_RESULT = 8192
"""Bytes of a result. A larger one is no format; real ones have 1,000."""
MAX_FILES = 500
"""Results that are kept; the oldest go."""


class Trip(msgspec.Struct, frozen=True):
    """A `normalizers.derive.RoundTrip`, from the process or from the cache."""

    format: str = ""
    fields: dict[str, Any] | None = None
    layout: dict[str, Any] | None = None
    history: History = History()
    evidence: tuple[str, ...] = ()
    probes: int = 0
    reason: str = ""


NONE = Trip()


class FormatChoice(msgspec.Struct, frozen=True):
    """found: the format and what shows it; None if nothing does. fields: of a derived format, as config.yaml takes
    them. layout: how the template writes calls, as fields of the format's `layout`. history: how it wants past calls.
    probes: how many conversations of the template the format reads back. reason: why none reads them."""

    found: Detection | None
    fields: dict[str, Any] | None = None
    layout: dict[str, Any] | None = None
    history: History = History()
    probes: int = 0
    reason: str = ""

    @property
    def spec(self) -> FormatSpec | None:
        if self.found is None:
            return None
        laid_out = {} if self.layout is None else {"layout": self.layout}
        return registry.define({**({"like": self.found.format} if self.fields is None else self.fields), **laid_out})

    def in_config(self) -> str:
        """A derived format as it stands in config.yaml."""
        import yaml

        fields = {**(self.fields or {}), **({"layout": self.layout} if self.layout else {})}
        written: str = yaml.safe_dump(
            {"tool_call_format": fields}, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
        )
        return written


def choose(known: About, wanted: str = "") -> FormatChoice:
    """The format of a model's calls. Blocks while a process renders the template, up to `WALL_SECONDS`.

    wanted: a built-in format that is configured; the layout counts if the template's calls are read by that one.
    """
    detected, template, named = _looked_at(known, wanted)
    trip = _trip(template, named)
    layout = trip.layout if trip.layout is not None and _is_layout(trip.layout) else None
    if trip.fields is not None and _is_format(trip.fields):
        return FormatChoice(
            Detection("derived", "chat template", trip.evidence), trip.fields, layout, trip.history, trip.probes
        )
    if trip.format and (detected is None or trip.format != detected.format) and trip.format in registry.names():
        return FormatChoice(
            Detection(trip.format, "chat template", trip.evidence), None, layout, trip.history, trip.probes
        )
    return FormatChoice(detected, None, layout if trip.format else None, trip.history, trip.probes, trip.reason)


def is_new(known: About, wanted: str = "") -> bool:
    """Whether `choose` may need a process: this one has no result for the template yet."""
    _, template, named = _looked_at(known, wanted)
    return (key := _key(template, named)) != "" and key not in SEEN


def _looked_at(known: About, wanted: str) -> tuple[Detection | None, str, str]:
    """What is detected without rendering, the template, and the name of the format to try."""
    detected = detect(special_tokens=known.tokens, chat_template=known.template or "", architecture=known.architecture)
    if wanted and (detected is None or detected.format != wanted):
        detected = None
    return detected, template_of(known.template), wanted or (detected.format if detected is not None else "")


def _is_layout(fields: dict[str, Any]) -> bool:
    try:
        return bool(registry.define({"like": "hermes", "layout": fields}))
    except registry.UnknownFormat:
        return False


def _is_format(fields: dict[str, Any]) -> bool:
    """Whether they define a format, and import nothing."""
    try:
        return fields.get("dialect") in DIALECTS and bool(registry.define(fields))
    except registry.UnknownFormat:
        return False


def template_of(text: str | None) -> str:
    """The template that is used with tools, where a model has several by name; empty if it has none."""
    if not text or not text.lstrip().startswith("["):
        return text or ""
    try:
        named = {entry["name"]: entry["template"] for entry in json.loads(text)}
    except (ValueError, TypeError, KeyError):
        return text
    return str(named.get("tool_use") or named.get("default") or "")


SEEN: dict[str, Trip] = {}
"""Results that this process has had."""
MAX_SEEN = 256


def _key(template: str, detected: str) -> str:
    """Empty for a template that needs no rendering: one that shows past calls reads them by this name."""
    if "tool_calls" not in template or len(template) > MAX_TEMPLATE:
        return ""
    return hashlib.sha256("\0".join((_rules(), detected, template)).encode("utf-8", "surrogatepass")).hexdigest()


def _trip(template: str, detected: str) -> Trip:
    if not (key := _key(template, detected)):
        return NONE
    found = SEEN.get(key)
    if found is None:
        found = _kept_or_made(folder() / f"{key}.json", template, detected)
        if len(SEEN) >= MAX_SEEN:
            SEEN.clear()
        SEEN[key] = found
    return found


@cache
def _rules() -> str:
    """What a result depends on besides the template: the readers, the formats and how others are derived."""
    sources = sorted(Path(normalizers.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


def folder() -> Path:
    """Where results are kept."""
    return USER.user_cache_path / "formats"


def _kept_or_made(file: Path, template: str, detected: str) -> Trip:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Trip)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # DecodeError is a ValueError
        log.warning("can't read %s, renders the chat template again: %s", file, error)
    trip, lasts = _made(template, detected)
    if lasts:
        _keep(file, trip)
    return trip


def _made(template: str, detected: str) -> tuple[Trip, bool]:
    """The result, and whether another attempt would give the same."""
    question = json.dumps({"template": template, "detected": detected, "seconds": SECONDS}).encode()
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "gateway.detection.worker"],
            input=question,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            cwd="/",
            timeout=WALL_SECONDS,
            start_new_session=True,  # Ctrl-C is for the gateway
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Trip(reason=f"the template wasn't rendered within {WALL_SECONDS:g} s"), False
    except OSError as error:
        return Trip(reason=f"no process renders the template: {error}"), False
    if done.returncode == -signal.SIGPROF:
        return Trip(reason=f"the template takes longer than {SECONDS:g} s of processor time"), True
    if done.returncode or len(done.stdout) > MAX_RESULT:
        return Trip(reason=f"the process that renders the template ended with {done.returncode}"), False
    try:
        return msgspec.json.decode(done.stdout, type=Trip), True
    except ValueError:
        return Trip(reason="the process that renders the template gave no result"), False


def _keep(file: Path, trip: Trip) -> None:
    try:
        whole(file, msgspec.json.encode(trip))
        kept = sorted(file.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
        for oldest in kept[:-MAX_FILES]:
            oldest.unlink(missing_ok=True)
    except OSError as error:
        log.warning("can't keep the format of a chat template: %s", error)

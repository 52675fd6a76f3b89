"""What a file of samples or results must hold, so that nothing else has to look: files may be damaged. Pure."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, ValidationError, convert

Json = dict[str, Any]


class _Call(Struct):
    name: str
    arguments: str


class _Answer(Struct):
    content: str = ""
    calls: list[_Call] = []


class _Reply(Struct):
    ms: float


class _Sample(Struct):
    key: str
    case: str
    hash: str
    way: Literal["whole", "stream"]
    repeat: int
    status: Literal["pass", "fail", "error"]
    kind: str | None
    detail: str | None
    answers: list[_Answer]
    replies: list[_Reply]
    http: int | None = None


class _Judged(_Sample, kw_only=True):
    folded: bool
    well_formed: bool
    decided: bool | None
    steps: tuple[int, int]


class _Read(_Judged, kw_only=True):
    names: bool
    count: bool
    schema_valid: bool | None
    arguments: tuple[int, int, int, int]


class _Share(Struct):
    k: int
    n: int


class _Case(Struct):
    h: str
    c: str
    s: Literal["P", "F", "E"]
    k: str = ""
    call: int | None = None
    ms: float = 0


class _JudgedCase(_Case, kw_only=True):
    v: int
    f: int


class _DecidedCase(_JudgedCase, kw_only=True):
    d: int


class _Suite(Struct):
    id: str
    version: int
    n: int


class _Target(Struct):
    model: str
    runtime: str = ""
    tool_call_format: str | UnsetType = UNSET


class _Times(Struct):
    p50: float
    p95: float


class _Arguments(Struct):
    precision: float | None
    recall: float | None
    invented: float | None


class _Metrics(Struct):
    folded: _Share
    macro: float | None
    well_formed: _Share
    schema_valid: _Share
    selection: _Share
    call_count: _Share
    arguments: _Arguments
    specificity: _Share
    call_recall: _Share
    balanced: float | None
    chains: _Share
    chain_progress: float | None
    parity: _Share
    ways: dict[str, _Share]
    kinds: dict[str, int]
    blame: dict[str, int]
    latency: dict[str, _Times] = {}


class _Repeated(_Metrics, kw_only=True):
    flips: _Share
    other_words: _Share
    always_passed: _Share


class _Result(Struct):
    created: str
    suite: _Suite
    target: _Target
    request: Json
    summary: dict[str, _Share]
    metrics: Json
    cases: dict[str, Json]
    gated: list[str] = []
    host: Json | None = None
    errors: list[Any] = []
    name: str = ""


def is_sample(value: Any) -> bool:
    kind: type[_Sample] = _Sample
    if isinstance(value, dict) and value.get("status") != "error":
        kind = _Read if "names" in value else _Judged
    try:
        convert(value, kind)
    except ValidationError:
        return False
    return True


def fault_of(result: Json) -> str | None:
    """Of a complete run's results; None: there is none."""
    try:
        found = convert(result, _Result)
        convert(found.metrics, _Repeated if "flips" in found.metrics else _Metrics)
        for case in found.cases.values():
            kind: type[_Case] = _Case if case.get("s") == "E" else _DecidedCase if "call" in case else _JudgedCase
            convert(case, kind)
    except ValidationError as error:
        return str(error)
    if "overall" not in found.summary or "stream" not in found.request:
        return "no summary.overall or no request.stream"
    if found.target.tool_call_format is not UNSET and not found.target.runtime:
        return "no target.runtime"
    return None

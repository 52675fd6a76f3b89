"""Files that are damaged, and places that can't be read or written: said in a line, and never a regression."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.features.evaluation.commands.model_test import main
from gateway.features.evaluation.model_test.results import answers, read
from tests.cli.commands import environment
from tests.patience import PATIENCE

Capture = pytest.CaptureFixture[str]
QUIET = ("--quiet", "--no-png", "--no-html")
ASK = ("run", "--fake", "oracle", "--suite", "smoke", "--limit", "3", *QUIET)


def run(out: Path, *more: str) -> int:
    return main([*ASK, "--baseline", "none", "--out", str(out), *more])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made")
    assert run(out) == 0
    return out


@pytest.mark.parametrize(
    "kept",
    [b"", b'{"fing', b'{"fingerprint":{"request":{"temp'],
    ids=["before the first line", "in its name", "in it"],
)
def test_a_kill_before_the_first_line(tmp_path: Path, kept: bytes) -> None:
    (tmp_path / "samples.jsonl").write_bytes(kept)
    assert run(tmp_path) == 0
    assert run(tmp_path) == 0
    assert len(answers(tmp_path)) == 3


@pytest.mark.parametrize(
    "line",
    [
        "gr\u00fcn".encode()[:3],
        b'{"key":"x","content":"gr\xc3',
        b"null",
        b"7",
        b"[]",
        b'"x"',
        b"[" * 100_000,
        b'{"key": [1]}',
        b'{"key": "x"}',
        b"\xff\xfe",
    ],
    ids=range(10),
)
def test_a_line_that_is_no_sample(tmp_path: Path, made: Path, line: bytes) -> None:
    lines = (made / "samples.jsonl").read_bytes().splitlines()
    (tmp_path / "samples.jsonl").write_bytes(b"\n".join([*lines[:2], line, lines[2], line]))
    assert run(tmp_path) == 0
    assert len(answers(tmp_path)) == 3


SAMPLE = (
    *("key", "case", "hash", "way", "repeat", "status", "kind", "detail", "answers", "replies", "steps"),
    *("well_formed", "folded", "decided", "count", "arguments", "schema_valid"),
)


@pytest.mark.parametrize("change", ["without", "of another type"])
@pytest.mark.parametrize("key", SAMPLE)
def test_a_sample_that_lacks_a_part_is_asked_again(tmp_path: Path, made: Path, key: str, change: str) -> None:
    head, *samples = map(json.loads, (made / "samples.jsonl").read_text("utf-8").splitlines())
    for sample in samples:
        assert key in sample
        sample[key] = {"a": 1}
        if change == "without":
            del sample[key]
    (tmp_path / "samples.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in (head, *samples)), "utf-8")
    assert run(tmp_path) == 0
    assert len(answers(tmp_path)) == 3


@pytest.mark.parametrize("head", ["7", "null", "{}", '{"fingerprint": 7}', '{"fingerprint": {}}'])
def test_another_first_line(tmp_path: Path, head: str, capsys: Capture) -> None:
    (tmp_path / "samples.jsonl").write_text(f"{head}\n")
    assert run(tmp_path) == 2
    assert "samples.jsonl" in capsys.readouterr().err


def without(*path: str) -> Callable[[Any], None]:
    def spoil(result: Any) -> None:
        found = [result]
        for name in path[:-1]:
            found = [inner for each in found for inner in (each.values() if name == "*" else [each[name]])]
        for each in found:
            each.pop(path[-1], None)

    return spoil


def instead(name: str, value: object) -> Callable[[Any], None]:
    return lambda result: result.update({name: value})


VALUES: tuple[object, ...] = (None, [], 5, "x")
PARTS = ("created", "suite", "target", "request", "summary", "metrics", "cases")
SPOILT: dict[str, Callable[[Any], None]] = {
    **{f"without {name}": without(name) for name in (*PARTS, "format", "complete")},
    **{
        f"{name} is {value!r}": instead(name, value)
        for name in PARTS
        for value in VALUES
        if name != "created" or value != "x"
    },
    **{f"no {name} in a case": without("cases", "*", name) for name in ("h", "c", "s", "v", "f", "d")},
    **{f"no {name} in metrics": without("metrics", name) for name in ("kinds", "blame", "ways", "arguments", "chains")},
    "no model": without("target", "model"),
    "no id": without("suite", "id"),
    "no overall": without("summary", "overall"),
    "no stream": without("request", "stream"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_damaged_result(tmp_path: Path, made: Path, how: str, capsys: Capture) -> None:
    spoilt = json.loads((made / "results.json").read_text("utf-8"))
    SPOILT[how](spoilt)
    (tmp_path / "kept").mkdir()
    file = tmp_path / "kept" / "old.json"
    file.write_text(json.dumps(spoilt), "utf-8")
    assert main(["compare", str(file), str(made)]) == 2
    assert main(["compare", str(made), str(file)]) == 2
    assert main(["report", str(made), "--baseline", str(file)]) == 2
    assert capsys.readouterr().err.count(f"{file}") == 3
    # Among the saved ones, it is passed over.
    words = [*ASK, "--out", str(tmp_path / "out"), "--baselines", str(file.parent), "--save-baseline", "mine"]
    assert main(words) == 0
    assert read(file.with_name("mine.json"))["name"] == "mine"
    assert main(["baseline", "list", "--baselines", str(file.parent)]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--out", "{}/file"), "file: File exists"),
        (("--out", "{}/file/x"), "Not a directory"),
        (("--system-prompt", "{}/binary"), "--system-prompt {}/binary: 'utf-8'"),
        (("--system-prompt", "{}"), "--system-prompt {}: "),
        (("--suite", "{}"), "suite.yaml: 'utf-8'"),
        (("--extra-body", "[]"), "it isn't a JSON object"),
        (("--extra-body", "5"), "it isn't a JSON object"),
        (("--extra-body", "{{"), "it isn't JSON"),
        (("--extra-body", '{{"a": NaN}}'), "it isn't JSON"),
        (("--retries", "-5"), "-5 is not in the range"),
        (("--baselines", "{}/file", "--save-baseline", "x"), "file: File exists"),
        (("--baselines", "{}/file/x", "--save-baseline", "x"), "Not a directory"),
        (("--config", "{}/missing.yaml", "--serve", "--fake="), "missing.yaml: can't be read"),
        (("--config", "{}/binary", "--serve", "--fake="), "binary:1:1: isn't UTF-8"),
        (("--config", "{}/missing.yaml", "--fake="), "missing.yaml: can't be read"),
        (("--base-url", "http://127.0.0.1:99999", "--fake="), "http://127.0.0.1:99999 is no URL"),
        (("--base-url", "http://127.0.0.1:99999", "--fake=", "--model", "x"), "http://127.0.0.1:99999 is no URL"),
    ],
)
def test_places_and_values(tmp_path: Path, words: tuple[str, ...], says: str, capsys: Capture) -> None:
    for name in ("binary", "suite.yaml"):
        (tmp_path / name).write_bytes(b"\xff\xfe")
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "out", *(word.format(tmp_path) for word in words)) == 2
    told = capsys.readouterr().err
    assert says.format(tmp_path) in told
    assert "Traceback" not in told
    assert not (tmp_path / "out" / "samples.jsonl").exists()


def test_a_report_that_cannot_be_written(tmp_path: Path, made: Path, capsys: Capture) -> None:
    for place in (tmp_path / "nosuch" / "x.html", tmp_path):
        assert main(["compare", str(made), str(made), "--html", str(place)]) == 2
        assert f"{place}: " in capsys.readouterr().err


def test_a_bug_is_no_regression(tmp_path: Path) -> None:
    """Of the module that scripts/model-test and swap run, whose 1 means one."""
    code = (
        "import sys; from gateway.features.evaluation.commands import model_test; "
        "model_test.commands.list_suites = lambda args: 1 / 0; sys.argv[1:] = ['list']; sys.exit(model_test.program())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, "this is a bug of ctxgate" in done.stderr) == (70, True)

"""`model-test` from its command line: fakes without a model, servers that fail, and what must never become a score."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.app import build
from gateway.config import Config, Model
from gateway.features.evaluation.commands.model_test import main
from gateway.features.evaluation.model_test.compare import Rules, compare
from gateway.features.evaluation.model_test.results import answers, read
from tests.cli.commands import environment
from tests.evaluation.model_test.servers import ODD, failing, listening
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.provider.server import serve

ROOT = Path(__file__).parents[3]
Capture = pytest.CaptureFixture[str]


def run(out: Path, *args: str) -> int:
    return main(["run", "--out", str(out), "--quiet", "--no-png", "--baseline", "none", *args])


def result(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "results.json").read_text("utf-8")))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("mode", "overall", "balanced", "kinds"),
    [
        ("oracle", 314, 1.0, set()),
        ("never", 81, 0.5, {"no_call", "wrong_answer"}),
        ("always", 4, 0.5, {"missing_arg", "unneeded_call", "wrong_tool", "wrong_count", "chain_broken"}),
        ("leaky", 91, 0.5, {"text_tool_call"}),
        ("broken-json", 91, 1.0, {"invalid_json"}),
        ("noisy:0.1", 287, None, {"no_call", "unneeded_call"}),
    ],
)
def test_fakes(tmp_path: Path, mode: str, overall: int, balanced: float | None, kinds: set[str]) -> None:
    code = run(tmp_path, "--fake", mode, "--concurrency", "4")
    made = result(tmp_path)
    assert made["summary"]["overall"] == {"k": overall, "n": 314}
    assert set(made["metrics"]["kinds"]) == kinds
    if balanced is not None:
        assert made["metrics"]["balanced"] == balanced
    # Without a baseline only what must pass can fail.
    broken = [id for id, case in made["cases"].items() if case.get("m") and case["s"] == "F"]
    assert code == (6 if kinds == {"text_tool_call"} else 1 if broken else 0)
    assert "latency" not in made["metrics"], "times of several questions at once say nothing"


def test_blame(tmp_path: Path) -> None:
    blames = {}
    for mode in ("leaky", "broken-json", "never"):
        run(tmp_path / mode, "--fake", mode, "--suite", "smoke")
        blames[mode] = set(result(tmp_path / mode)["metrics"]["blame"])
    assert blames == {"leaky": {"dialect"}, "broken-json": {"gateway"}, "never": {"model"}}


def test_streamed_and_whole_are_told_apart(tmp_path: Path) -> None:
    assert run(tmp_path, "--fake", "oracle", "--suite", "smoke", "--stream", "both") == 0
    metrics = result(tmp_path)["metrics"]
    assert metrics["ways"] == {"whole": {"k": 20, "n": 20}, "stream": {"k": 20, "n": 20}}
    assert metrics["parity"] == {"k": 20, "n": 20}
    assert set(metrics["latency"]) >= {"ms", "ttfb_ms", "ttft_ms", "first_call_ms"}


def test_what_comes_at_once_has_no_speed(tmp_path: Path) -> None:
    with failing("none") as url:
        run(tmp_path, "--base-url", url, "--suite", "smoke", "--stream", "on")
    latency = result(tmp_path)["metrics"]["latency"]
    assert latency["ttft_ms"]["n"] >= 20
    assert "tokens_per_s" not in latency


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        ("500", 3),
        ("bad-list", 3),
        ("half-broken", 4),
        ("html", 4),
        ("late", 4),
        ("gone", 4),
        ("cut", 4),
    ],
)
def test_a_server_that_fails_is_never_a_score(tmp_path: Path, capsys: Capture, trouble: str, code: int) -> None:
    with failing(trouble) as url:
        timeout = "3" if trouble == "late" else "30"
        how = ("--suite", "smoke", "--timeout", timeout, "--retries", "0", "--stream", "both", "--json")
        assert run(tmp_path, "--base-url", url, *how) == code
    shown = capsys.readouterr()
    assert '"summary"' not in shown.out
    if code == 4:
        made = result(tmp_path)
        assert made["complete"] is False
        assert not {"summary", "metrics", "cases", "gate"} & made.keys()
        assert "No score" in shown.err
        assert main(["baseline", "save", "x", "--from", str(tmp_path), "--baselines", str(tmp_path)]) == 2
    else:
        assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("stream", ["off", "on"])
def test_whatever_a_server_answers_is_judged(tmp_path: Path, odd: str, stream: str) -> None:
    with failing(odd) as url:
        asked = ("--suite", "smoke", "--category", "single", "--stream", stream, "--limit", "2")
        assert run(tmp_path, "--base-url", url, "--model", "m", *asked) in (0, 1)
    made = result(tmp_path)
    assert made["complete"] is True
    assert made["summary"]["overall"]["k"] == 0


def test_an_address_that_is_none(tmp_path: Path, capsys: Capture) -> None:
    assert run(tmp_path, "--base-url", "http://[", "--model", "m") == 2
    assert "http://[ is no URL" in capsys.readouterr().err


def test_nobody_there(tmp_path: Path) -> None:
    assert run(tmp_path, "--base-url", f"http://127.0.0.1:{free_port()}/v1", "--model", "m") == 3


def test_somebody_who_never_answers(tmp_path: Path) -> None:
    with listening() as port:
        assert run(tmp_path, "--base-url", f"http://127.0.0.1:{port}/v1", "--model", "m", "--timeout", "1") == 3


def test_another_model(tmp_path: Path, capsys: Capture) -> None:
    with failing("none") as url:
        assert run(tmp_path, "--base-url", url, "--model", "other") == 3
    assert "has no model other; it has: m" in capsys.readouterr().err


def test_a_gateways_active_model_is_asked(tmp_path: Path, capsys: Capture) -> None:
    models = {name: Model(name=name, runtime="echo") for name in ("first", "second", "third")}
    config = Config(source=tmp_path / "config.yaml", active_model="second", models=models, state_dir=tmp_path / "state")
    with serve(build(config), lifespan="on") as url:
        run(tmp_path / "out", "--base-url", f"{url}/v1", "--suite", "smoke", "--limit", "1")
    assert read(tmp_path / "out/results.json")["target"]["model"] == "second", capsys.readouterr().err


def test_without_an_active_one_a_model_must_be_chosen(tmp_path: Path, capsys: Capture) -> None:
    with failing("two") as url:
        assert run(tmp_path, "--base-url", url) == 2
    assert "choose a --model: m, n" in capsys.readouterr().err


@pytest.mark.parametrize(("trouble", "status"), [("reproducible", 500), ("refuses", 400)])
def test_what_a_gateway_does_again_is_its_fault(tmp_path: Path, trouble: str, status: int) -> None:
    """One question of a hundred; more 5xx than may be would be no score."""
    with failing(trouble) as url:
        how = ("--suite", "core", "--category", "single", "--category", "select", "--max-error-rate", "2")
        run(tmp_path, "--base-url", url, *how)
    case = result(tmp_path)["cases"]["single-001"]
    assert (case["s"], case["k"]) == ("F", "gateway_error")
    (sample,) = answers(tmp_path)["single-001"]
    assert sample["http"] == status
    assert result(tmp_path)["metrics"]["blame"]["gateway"] == 1


def test_a_context_that_is_too_small_is_the_models(tmp_path: Path) -> None:
    with failing("overflow") as url:
        run(tmp_path, "--base-url", url, "--suite", "smoke")
    assert result(tmp_path)["metrics"]["kinds"] == {"context_exceeded": 19}, "all but the first"


def test_resume_asks_only_what_is_missing(tmp_path: Path) -> None:
    how = ("--fake", "oracle", "--suite", "smoke")
    assert run(tmp_path, *how, "--limit", "5") == 0
    file = tmp_path / "samples.jsonl"
    assert len(file.read_text("utf-8").split("\n")) == 1 + 5 + 1
    # As a kill leaves it: half a line at the end.
    file.write_text(file.read_text("utf-8") + '{"key": "sing', "utf-8")
    before = {key: sample["at"] for key, samples in answers(tmp_path).items() for sample in samples}
    assert run(tmp_path, *how) == 0
    after = answers(tmp_path)
    assert len(after) == 20
    assert result(tmp_path)["summary"]["overall"] == {"k": 20, "n": 20}
    keys = [
        json.loads(line)["key"] for line in file.read_text("utf-8").split("\n") if '"key":' in line and '"at"' in line
    ]
    assert len(keys) == len(set(keys)), "nothing was asked twice"
    assert set(before) <= set(after)


def test_no_resume_of_something_else(tmp_path: Path, capsys: Capture) -> None:
    how = ("--fake", "oracle", "--suite", "smoke", "--limit", "3")
    assert run(tmp_path, *how) == 0
    assert run(tmp_path, *how, "--max-tokens", "64") == 2
    assert "request.max_tokens 1024 there, 64 now" in capsys.readouterr().err
    assert run(tmp_path, *how, "--max-tokens", "64", "--fresh") == 0
    assert len(list(tmp_path.glob("samples-*.jsonl"))) == 1


def test_errors_are_asked_again(tmp_path: Path) -> None:
    with failing("half-broken") as url:
        assert run(tmp_path, "--base-url", url, "--suite", "smoke", "--retries", "0", "--max-error-rate", "60") == 1
    made = result(tmp_path)
    assert made["complete"]
    assert len(made["errors"]) == 10
    # Nobody's fault but the server's: neither passed nor failed.
    assert made["summary"]["overall"]["n"] == 20 - len({error["case"] for error in made["errors"]})


def interrupted(command: list[str], folder: Path) -> int:
    """The exit code of a run that is interrupted as it has written some samples."""
    with subprocess.Popen(command, cwd=ROOT, env=environment(folder), stderr=subprocess.PIPE, text=True) as process:
        file = folder / "run" / "samples.jsonl"
        assert process.stderr is not None
        while process.poll() is None and not (file.exists() and file.read_text("utf-8").count("\n") > 3):
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        return process.wait(PATIENCE)


def test_interrupted_and_taken_up_again(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "gateway.cli.model_test",
        "run",
        "--fake",
        "oracle",
        "--out",
        str(tmp_path / "run"),
    ]
    command += ["--baseline", "none", "--no-png", "--no-html"]
    code = 0
    while not code:  # where this process was given no time, the run may have come to its end
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        code = interrupted(command, tmp_path)
    assert code == 130
    begun = len(answers(tmp_path / "run"))
    assert 0 < begun < 314
    done = subprocess.run(
        [*command, "--json"],
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["overall"] == {"k": 314, "n": 314}
    assert "model-test: 314 cases, 322 answers: some cases are asked more than once" in done.stderr
    assert re.search(r"\d+/322 · pass 100.0 % · err 0 · .*s/answer · ETA 00:00", done.stderr)


def test_first_tokens_have_no_rate_of_passes(tmp_path: Path, capsys: Capture) -> None:
    """As `ctxgate tune --calls` asks for them."""
    ask = ["run", "--fake", "oracle", "--suite", "smoke", "--max-tokens", "1", "--no-png", "--no-html"]
    main([*ask, "--out", str(tmp_path / "out"), "--baseline", "none"])
    said = capsys.readouterr().err
    assert re.search(r"\d+/\d+ · err 0 · .*s/answer", said)
    assert "pass" not in said


def test_alone_it_shows_no_empty_columns_and_says_how_to_compare_later(tmp_path: Path, capsys: Capture) -> None:
    kept = tmp_path / "kept"
    ask = ["run", "--fake", "oracle", "--suite", "smoke", "--quiet", "--no-png", "--no-html", "--baselines", str(kept)]
    assert main([*ask, "--out", str(tmp_path / "a")]) == 0
    alone = capsys.readouterr().out
    assert "NO BASELINE\n  nothing saved was asked in the same way; `ctxgate model-test baseline save`" in alone
    assert "p(worse)" not in alone
    assert main([*ask, "--out", str(tmp_path / "b"), "--save-baseline", "x"]) == 0
    assert "nothing saved" not in capsys.readouterr().out
    assert main([*ask, "--out", str(tmp_path / "c")]) == 0
    compared = capsys.readouterr().out
    assert "NO BASELINE" not in compared
    assert "p(worse)" in compared


def test_the_noise_of_a_machine(tmp_path: Path) -> None:
    assert run(tmp_path, "--fake", "oracle", "--suite", "smoke", "--aa") == 0
    metrics = result(tmp_path)["metrics"]
    assert metrics["flips"] == {"k": 0, "n": 20}
    assert metrics["other_words"] == {"k": 0, "n": 20}


def test_the_gate(tmp_path: Path, capsys: Capture) -> None:
    """Saved, found by itself, compared; worse, mismatched, missing."""
    kept = ("--baselines", str(tmp_path / "kept"))
    some = ("--limit", "150", "--concurrency", "2")
    run(tmp_path / "good", "--fake", "oracle", *some)
    assert main(["baseline", "save", "good", "--from", str(tmp_path / "good"), *kept]) == 0
    assert (tmp_path / "kept" / "good.json").stat().st_size < 60_000
    how = ["run", "--quiet", "--no-png", *some, *kept]
    assert main([*how, "--fake", "oracle", "--out", str(tmp_path / "same")]) == 0
    gate = result(tmp_path / "same")["gate"]
    assert (gate["verdict"], gate["pairs"], gate["lost"]) == ("no regression shown", 150, [])
    capsys.readouterr()

    assert main([*how, "--fake", "noisy:0.1", "--out", str(tmp_path / "worse")]) == 1
    assert "REGRESSION" in capsys.readouterr().out
    gate = result(tmp_path / "worse")["gate"]
    overall = gate["tests"][0]
    lost = sum(case["s"] == "F" for case in result(tmp_path / "worse")["cases"].values())
    assert lost > 6
    assert (overall["name"], overall["lost"], overall["won"], overall["regression"]) == ("overall", lost, 0, True)
    assert overall["p_worse"] == pytest.approx(2**-lost)
    assert len(gate["lost"]) == lost
    page = (tmp_path / "worse" / "report.html").read_text("utf-8")
    assert f"Lost: {lost}" in page
    assert "http-equiv" not in page
    assert not re.search(r'(src|href)="', page), "nothing is loaded from elsewhere"

    # The other way round it is a gain.
    assert main(["compare", str(tmp_path / "worse"), str(tmp_path / "kept" / "good.json")]) == 0
    # A part of the suite is compared with the same part of the baseline.
    part = [*how, "--fake", "oracle", "--limit", "50", "--out", str(tmp_path / "part")]
    assert main(part) == 0
    assert result(tmp_path / "part")["gate"]["pairs"] == 50
    other = [*how, "--fake", "oracle", "--max-tokens", "9", "--out", str(tmp_path / "other")]
    capsys.readouterr()
    assert main([*other, "--baseline", "good"]) == 5
    assert "request.max_tokens: 1024 and 9" in capsys.readouterr().err
    assert main([*other, "--baseline", "good", "--allow-mismatch"]) == 0
    assert main(["report", str(tmp_path / "worse"), "--baseline", str(tmp_path / "kept" / "good.json")]) == 0
    assert (tmp_path / "worse" / "report.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(["baseline", "list", *kept]) == 0
    assert capsys.readouterr().out.split()[:2] == ["good", "core"]
    assert main(["baseline", "rm", "good", *kept]) == 0
    assert main(["baseline", "show", "good", *kept]) == 2


def test_targets(tmp_path: Path, capsys: Capture) -> None:
    assert run(tmp_path / "a", "--fake", "oracle", "--targets", "localcowork") == 0
    assert (
        run(tmp_path / "b", "--fake", "oracle", "--suite", "smoke", "--targets", "localcowork", "--min", "abstain=100%")
        == 0
    )
    assert run(tmp_path / "c", "--fake", "never", "--category", "abstain", "--targets", "localcowork") == 1
    assert "target select ≥ 90 %: no such cases were asked" in capsys.readouterr().out


def test_margin_and_noninferiority(tmp_path: Path) -> None:
    """One case of 314 lost: no regression, and no proof of being as good either."""
    run(tmp_path, "--fake", "oracle", "--concurrency", "4")
    before, after = read(tmp_path), read(tmp_path)
    after["cases"]["single-004"]["s"] = "F"
    assert compare(before, after, Rules()).passed
    assert compare(before, after, Rules(noninferiority=5)).passed
    strict = compare(before, after, Rules(noninferiority=0.5))
    assert "not shown to be at most 0.5 points worse" in strict.reasons[0]
    # Many lost, but within the margin that was allowed.
    for id in list(after["cases"])[:12]:
        after["cases"][id]["s"] = "F"
    assert not compare(before, after, Rules()).passed
    assert compare(before, after, Rules(margin=101)).reasons == ("must pass, and did before: abstain-001",)
    # A case that must pass and never did is no regression.
    before["cases"]["abstain-001"]["s"] = "F"
    assert compare(before, after, Rules(margin=101)).passed


def test_slower(tmp_path: Path) -> None:
    run(tmp_path, "--fake", "oracle", "--suite", "smoke")
    before, after = read(tmp_path), read(tmp_path)
    for old, new in zip(before["cases"].values(), after["cases"].values(), strict=True):
        old["ms"], new["ms"] = 100, 150
    told = compare(before, after, Rules())
    assert told.passed
    assert told.latency is not None
    assert told.latency["slower"]
    assert compare(before, after, Rules(gate_latency=True)).reasons == ("slower: 1.50 times the baseline's time",)
    after["host"] = {"cpu": "another"}
    assert compare(before, after, Rules(gate_latency=True)).latency is None


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run", "--suite", "nothing"], 2, "there is no suite nothing"),
        (["--fake", "clever"], 2, "clever is none of oracle"),
        (["--fake", "noisy"], 2, "noisy is none of"),
        (["--fake", "oracle", "--category", "lyrics"], 2, "no category lyrics"),
        (["--fake", "oracle", "--case", "zzz*"], 2, "no case is left"),
        (["--fake", "oracle", "--serve"], 2, "choose one of"),
        (["compare", "/nowhere", "/nowhere"], 2, "/nowhere: No such file or directory; it takes a baseline's file"),
        (["baseline", "show"], 2, "needs a name"),
    ],
)
def test_wrong_words(capsys: Capture, words: list[str], code: int, says: str) -> None:
    assert main(words) == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-1"])
@pytest.mark.parametrize("option", ["temperature", "top-p", "timeout", "alpha", "margin", "noninferiority"])
def test_numbers_that_would_pass_every_model_are_refused(capsys: Capture, option: str, number: str) -> None:
    """No comparison with nan is true."""
    words = [f"--{option}", number, "--fake", "never", "--suite", "smoke", "--dry-run"]
    assert main(words) == 2
    assert f"Invalid value for '--{option}'" in capsys.readouterr().err


def test_a_share_that_is_no_number(capsys: Capture, tmp_path: Path) -> None:
    assert run(tmp_path, "--fake", "noisy:nan") == 2
    assert "nan is no share" in capsys.readouterr().err


def test_a_saved_run_is_found_by_the_name_it_was_given(tmp_path: Path, capsys: Capture) -> None:
    ask = ["run", "--fake", "oracle", "--suite", "smoke", "--limit", "5", "--quiet", "--no-png", "--no-html"]
    ask += ["--baselines", str(tmp_path / "kept")]
    assert main([*ask, "--out", str(tmp_path / "a"), "--save-baseline", "qwen3:4b"]) == 0
    assert main([*ask, "--out", str(tmp_path / "b"), "--baseline", "qwen3:4b"]) == 0
    assert "NO REGRESSION" in capsys.readouterr().out


def test_other_commands_find_it_by_that_name_too(tmp_path: Path, capsys: Capture) -> None:
    kept, out = ("--baselines", str(tmp_path / "kept")), str(tmp_path / "a")
    ask = ["run", "--fake", "oracle", "--suite", "smoke", "--limit", "5", "--quiet", "--no-png", "--no-html"]
    assert main([*ask, "--out", out, "--save-baseline", "qwen3:4b", *kept]) == 0
    assert f"saved as {tmp_path / 'kept' / 'qwen3-4b.json'}" in capsys.readouterr().err
    for words in (
        ["compare", "qwen3:4b", out],
        ["compare", out, "qwen3:4b"],
        ["report", out, "--baseline", "qwen3:4b"],
    ):
        assert main([*words, *kept]) == 0
        assert "NO REGRESSION" in capsys.readouterr().out
    assert main(["compare", "--html", str(tmp_path / "x.html"), "qwen3:4b", out, *kept]) == 0


@pytest.mark.parametrize("name", ["qwen", "./qwen", "../here/qwen", "{}/qwen"])
def test_a_path_that_exists_is_no_saved_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run would be compared with the baseline itself, and never be worse."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    run = ["run", "--suite", "smoke", "--quiet", "--no-png", "--no-html", "--baselines", "kept"]
    assert main([*run, "--fake", "oracle", "--out", "good", "--save-baseline", "qwen"]) == 0
    assert main([*run, "--fake", "never", "--out", "qwen", "--baseline", "none"]) == 1
    shown, kept = name.format(here), str(here / "kept" / "qwen.json")
    assert main(["compare", kept, shown, "--baselines", "kept"]) == 1
    assert main(["compare", shown, kept, "--baselines", "kept"]) == 0


def test_foreign_files_beside_the_baselines_are_passed_over(tmp_path: Path, capsys: Capture) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "old.json").write_text('{"format": "model-test-baseline/0"}')
    (kept / "deep.json").write_text("[" * 100_000)
    ask = ["run", "--fake", "oracle", "--suite", "smoke", "--limit", "5", "--quiet", "--no-png", "--no-html"]
    ask += ["--baselines", str(kept)]
    assert main([*ask, "--out", str(tmp_path / "a"), "--save-baseline", "x"]) == 0
    assert "old.json: its format is 'model-test-baseline/0'" in capsys.readouterr().err
    assert main([*ask, "--out", str(tmp_path / "b")]) == 0
    assert "NO REGRESSION" in capsys.readouterr().out, "x was found"
    assert main(["baseline", "list", "--baselines", str(kept)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("x ")
    assert "old.json" in shown.err


def test_a_baseline_that_cannot_be_read_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    assert run(tmp_path / "out", "--fake", "oracle", "--suite", "smoke", "--baseline", "nowhere") == 2
    assert not (tmp_path / "out").exists()


def test_a_secret_is_written_nowhere(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with failing("half-broken") as url:
        secretive = url.replace("http://", "http://ana:hunter2@")
        run(tmp_path, "--base-url", secretive, "--suite", "smoke", "--header", "x-token=tok-secret", "--retries", "0")
    shown = capsys.readouterr()
    texts = [shown.out, shown.err, *(path.read_text("utf-8") for path in tmp_path.iterdir())]
    for secret in ("sk-very-secret", "hunter2", "tok-secret"):
        assert not any(secret in text for text in texts)


def test_selfcheck_and_lists(capsys: Capture) -> None:
    assert main(["selfcheck", "--suite", "core"]) == 0
    shown = capsys.readouterr().out
    assert "statistics: right" in shown
    assert re.search(
        r"core: 314 of 314 right answers pass; 0 of \d{4} wrong ones do; never calling 50.0 %, always 50.0", shown
    )
    assert main(["list", "--cases", "--suite", "core"]) == 0
    assert "core@1: 314 cases" in capsys.readouterr().out
    assert main(["--fake", "oracle", "--dry-run", "--category", "types"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12

"""The benchmarks' arithmetic and checks: a wrong answer or a bad figure must not pass for a good one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import throughput
from benchmarks.harness import answers, proc, report
from benchmarks.harness.answers import BadAnswer, Script
from benchmarks.harness.stacks import lifted
from benchmarks.instructions import __main__ as instructions
from tests.patience import PATIENCE
from tests.ports import free_port

SCRIPT = Script(chunks=5)
STREAM = b"".join(answers.events(SCRIPT))


def call_stream(arguments: list[str], finish: str = "tool_calls") -> bytes:
    """What a gateway makes of a scripted tool call."""
    functions = [{"name": "write_note", "arguments": ""}, *({"arguments": part} for part in arguments)]
    deltas = [{"tool_calls": [{"index": 0, "function": function}]} for function in functions]
    choices: list[dict[str, object]] = [{"delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"delta": {}, "finish_reason": finish})
    events = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices]
    return "".join([*events, "data: [DONE]\n\n"]).encode()


def test_the_scripted_answers_pass_their_own_checks() -> None:
    answers.check_whole(answers.whole_answer())
    answers.check_stream(STREAM, SCRIPT)
    call = Script(chunks=5, tool_call=True)
    answers.check_stream(call_stream(['{"text":"', " w0000", " w0001", " w0002", '"}']), call)


def test_the_prompt_carries_the_script() -> None:
    assert answers.read_request(answers.request_body(Script(7, 5.0, held=True))) == Script(7, 5.0, held=True)
    assert answers.read_request(answers.request_body(None)) is None


def test_chunks_are_of_the_size_that_engines_send() -> None:
    assert all(180 <= len(event) <= 260 for event in answers.events(SCRIPT)[:-1])


BAD_STREAMS = {
    "no_done": (STREAM.replace(b"data: [DONE]\n\n", b""), SCRIPT),
    "delta_lost": (STREAM.replace(answers.events(SCRIPT)[2], b""), SCRIPT),
    "deltas_swapped": (STREAM.replace(b"w0001", b"w000x").replace(b"w0002", b"w0001"), SCRIPT),
    "deltas_merged": (
        STREAM.replace(answers.events(SCRIPT)[2], b"").replace(b" w0002", b" w0001 w0002"),
        SCRIPT,
    ),
    "no_finish": (STREAM.replace(b'"stop"', b"null"), SCRIPT),
    "cut_json": (STREAM.replace(b'"index":0', b'"index":', 1), SCRIPT),
    "empty": (b"", SCRIPT),
    "raw_call": (b"".join(answers.events(Script(5, tool_call=True))), Script(5, tool_call=True)),
    "call_cut": (call_stream(['{"text":"', " w0000"]), Script(5, tool_call=True)),
    "call_finish_stop": (call_stream(["{}"], finish="stop"), Script(5, tool_call=True)),
}


@pytest.mark.parametrize("name", BAD_STREAMS)
def test_a_broken_stream_is_refused(name: str) -> None:
    body, script = BAD_STREAMS[name]
    with pytest.raises(BadAnswer):
        answers.check_stream(body, script)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"choices":[]}', answers.whole_answer().replace(b"plain", b"other")])
def test_a_broken_whole_answer_is_refused(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        answers.check_whole(body)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([5.0], 0.0), ([1.0, 1.0, 1.0], 0.0), ([1.0, 2.0, 3.0], 0.5), ([0.0, 0.0, 0.0], 0.0)],
    ids=["single", "equal", "half", "zero_median"],
)
def test_spread_is_the_quartile_distance_over_the_median(values: list[float], expected: float) -> None:
    assert report.spread(values) == pytest.approx(expected)


def test_medians_are_taken_per_reading() -> None:
    rounds = [{"request": 1.0, "rss": 9.0}, {"request": 3.0, "rss": 7.0}, {"request": 2.0, "rss": 80.0}]
    assert report.medians(rounds) == {"request": 2.0, "rss": 9.0}


def result(request: float, paced: float, start: float = 0.1, rss: float = 40.0) -> dict[str, float]:
    return {"request": request, "paced_8": paced, "paced_32": paced, "paced_128": paced, "unpaced": 5.0,
            "ttft": 0.1, "start": start, "rss": rss}  # fmt: skip


PEERS = {"nginx": result(15, 10), "vllm-router": result(45, 19), "smg": result(75, 22), "litellm": result(12_000, 400)}


@pytest.mark.parametrize(
    ("ours", "missed"),
    [
        (result(50, 18), set()),
        (result(61, 18), {"a request, x nginx", "a request, LiteLLM / ctxgate"}),
        (result(50, 20), {f"a chunk, {n} paced streams, µs, against vllm-router" for n in (32, 128)}),
        (result(50, 18, start=0.31, rss=60.5), {"spawn → first 200, s", "RSS after load, MB"}),
    ],
    ids=["all_met", "slow_request", "slower_than_a_router", "start_and_memory"],
)
def test_goals_are_judged_against_the_peers(ours: dict[str, float], missed: set[str]) -> None:
    goals = report.goals({**PEERS, "ctxgate": ours})
    assert {goal.text for goal in goals if goal.met is False} == missed
    assert all(goal.met is not None for goal in goals)


def test_a_goal_without_its_peer_is_not_measured() -> None:
    goals = report.goals({"ctxgate": result(50, 18)})
    assert [goal.text for goal in goals if goal.met is not None] == ["spawn → first 200, s", "RSS after load, MB"]
    assert str(goals[0]) == "- not measured: a request, x nginx"


def test_the_table_keeps_a_stack_that_could_not_run() -> None:
    labels = {"nginx": "nginx 1.22", "smg": "smg 1.13.0"}
    text = report.table(labels, {"nginx": result(15, 10)}, {"smg": "smg==1.13.0 can't be installed"})
    assert "| nginx 1.22 |" in text
    assert "15.0 (1.0x)" in text
    assert "| smg 1.13.0 |" in text
    assert text.endswith("smg 1.13.0 was not measured: smg==1.13.0 can't be installed")


def test_the_parent_is_read_past_a_command_with_parentheses() -> None:
    assert proc.parse_ppid("42 (a) b (c)) S 7 42 42 0 -1") == 7


def test_a_tree_holds_grandchildren_and_nobody_else() -> None:
    assert proc.tree(10, {10: 1, 11: 10, 12: 11, 13: 1, 1: 0}) == [10, 11, 12]


def test_the_cpu_clock_of_another_process_counts_its_work() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used = proc.cpu_seconds([process.pid])
        ticks = sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        process.communicate(b"\n", timeout=PATIENCE)
    assert used >= 0.3
    assert used == pytest.approx(ticks / os.sysconf("SC_CLK_TCK"), abs=0.03)


def test_a_server_that_ends_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    port = free_port()
    server = proc.Server.start([sys.executable, "-c", "raise SystemExit('no such model')"], port, tmp_path / "log")
    with pytest.raises(proc.Failed, match="no such model"):
        server.wait_ready("/health", PATIENCE)
    server.stop()


def test_totals_are_read_from_a_callgrind_dump() -> None:
    assert instructions.parse_total("# callgrind format\nevents: Ir\nsummary: 177968\n\nfn=(1)\n1 5\n") == 177968
    with pytest.raises(ValueError, match="no totals"):
        instructions.parse_total("# callgrind format\n")


@pytest.mark.parametrize(
    ("counts", "recorded", "good"),
    [
        ((200_000, 50_000, 90_000), None, True),
        ((200_000, 50_000, 90_000), (195_000, 50_000, 90_000), True),
        ((200_000, 50_000, 90_000), (190_000, 50_000, 90_000), False),
        ((200_000, 50_000, 95_000), (200_000, 50_000, 90_000), False),
        ((261_000, 50_000, 90_000), (261_000, 50_000, 90_000), False),
        ((100_000, 50_000, 90_000), (200_000, 50_000, 90_000), True),
    ],
    ids=["no_record", "within_margin", "regression", "regression_without_goal", "over_goal", "better"],
)
def test_counts_are_held_to_goals_and_record(
    counts: tuple[int, ...], recorded: tuple[int, ...] | None, good: bool
) -> None:
    keys = [kind.key for kind in instructions.KINDS[:3]]
    record = None if recorded is None else dict(zip(keys, recorded, strict=True))
    assert instructions.judge(dict(zip(keys, counts, strict=True)), record)[1] is good


@pytest.mark.parametrize(("limited", "good"), [(205_000, True), (213_000, False)])
def test_what_limits_add_is_held_to_its_share(limited: int, good: bool) -> None:
    assert instructions.judge({"keyed": 200_000, "limited": limited}, None)[1] is good
    assert instructions.judge({"together": limited}, {instructions.BEFORE: 200_000})[1] is good


def test_tokens_are_read_from_the_usage_at_the_end() -> None:
    body = (
        b'data: {"choices":[{"delta":{}}]}\n\ndata: {"choices":[],"usage":{"completion_tokens":7}}\n\ndata: [DONE]\n\n'
    )
    assert throughput.completion_tokens(body) == 7
    for broken in (body.replace(b"data: [DONE]", b""), body.replace(b"usage", b"other"), b""):
        with pytest.raises(BadAnswer):
            throughput.completion_tokens(broken)


def test_pins_are_lifted_of_what_is_overridden_alone() -> None:
    requires = [
        "httpx>=0.28",
        "certifi>=2099.1; python_version >= '3.8'",
        "tomli; python_version < '3'",
        "rich>=9; extra == 'proxy'",
        "more-extras==2; extra == 'proxy'",
        "uvicorn[standard]>=1; extra == 'proxy'",
        "boto3; extra == 'cloud'",
    ]
    overrides = ("certifi", "more-extras", "uvicorn")
    kept = ["httpx>=0.28", "certifi"]
    assert lifted(requires, "peer==1.0", overrides) == kept
    assert lifted(requires, "peer[proxy]==1.0", overrides) == [*kept, "rich>=9", "more-extras", "uvicorn[standard]"]

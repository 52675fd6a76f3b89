"""The lines of Ollama's API: their durations and their calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.errors import ProviderInvalidResponse
from gateway.features.ollama.wire.answer import LineEncoder
from gateway.wire.pieces import CallArguments, CallStart, End, Piece, ReasoningPiece, TextPiece, UsagePiece


def encoder(*times: float, generate: bool = False) -> LineEncoder:
    """Begun at 100 s; the clock then tells these times, and stays at the last."""

    def clock() -> Iterator[float]:
        yield from times
        while True:
            yield times[-1]

    ticks = clock()
    return LineEncoder("m", 100.0, lambda: next(ticks), generate=generate)


def test_the_first_piece_divides_prompt_from_completion() -> None:
    # The clock is asked for the first piece, then for the date of each line.
    lines = encoder(101.0, 101.0, 103.0)
    lines.feed([TextPiece("Hello")])
    last = lines.finish()[-1]
    assert (last["total_duration"], last["load_duration"]) == (3_000_000_000, 0)
    assert (last["prompt_eval_duration"], last["eval_duration"]) == (1_000_000_000, 2_000_000_000)


def test_the_engine_s_own_durations_count() -> None:
    lines = encoder(101.0)
    lines.feed([TextPiece("Hello"), UsagePiece(prompt=3, completion=4, prompt_seconds=0.25, completion_seconds=0.5)])
    last = lines.finish()[-1]
    assert (last["prompt_eval_count"], last["eval_count"]) == (3, 4)
    assert (last["prompt_eval_duration"], last["eval_duration"]) == (250_000_000, 500_000_000)


def test_an_answer_without_pieces_took_no_time_to_write() -> None:
    last = encoder(102.0).finish()[-1]
    assert (last["prompt_eval_duration"], last["eval_duration"]) == (2_000_000_000, 0)
    assert last["done_reason"] == "stop"


def test_a_clock_that_is_set_back_gives_no_negative_duration() -> None:
    lines = encoder(90.0)
    lines.feed([TextPiece("Hello")])
    last = lines.finish()[-1]
    assert (last["total_duration"], last["prompt_eval_duration"], last["eval_duration"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("reason", "told"),
    [("length", "length"), ("stop", "stop"), ("tool_calls", "stop"), ("content_filter", "stop")],
)
def test_a_limit_is_told(reason: str, told: str) -> None:
    lines = encoder(101.0)
    lines.feed([TextPiece("Hello"), End(reason)])
    assert lines.finish()[-1]["done_reason"] == told


def test_a_chat_is_the_default() -> None:
    assert LineEncoder("m", 100.0, lambda: 101.0).loaded("load") == {
        "model": "m",
        "created_at": "1970-01-01T00:01:41Z",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "load",
    }


PIECES: list[Piece] = [
    ReasoningPiece("Hm."),
    TextPiece("So"),
    TextPiece(""),
    CallStart(0, "a", "now"),
    CallArguments(0, '{"n"'),
    CallArguments(0, ": 1}"),
    CallStart(1, "b", "later"),
    TextPiece("!"),
    CallArguments(1, "{}"),
]


def test_each_call_is_one_line_in_its_place() -> None:
    lines = encoder(101.0)
    messages = [line["message"] for line in lines.feed(PIECES)]
    assert [message.get("thinking") or message["content"] for message in messages] == ["Hm.", "So", "", "", "!"]
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    assert calls == [
        {"id": "a", "function": {"index": 0, "name": "now", "arguments": {"n": 1}}},
        {"id": "b", "function": {"index": 1, "name": "later", "arguments": {}}},
    ]


def test_a_whole_answer_joins_its_lines() -> None:
    lines = encoder(101.0)
    whole = lines.whole([*lines.feed(PIECES), *lines.finish()])
    assert (whole["message"]["content"], whole["message"]["thinking"]) == ("So!", "Hm.")
    assert [call["function"]["name"] for call in whole["message"]["tool_calls"]] == ["now", "later"]
    assert whole["done"] is True
    assert not {"eval_duration", "prompt_eval_duration"} & whole.keys()


@pytest.mark.parametrize("arguments", ['{"n": ', "[1"])
def test_a_call_that_can_t_be_written_is_an_error(arguments: str) -> None:
    lines = encoder(101.0)
    lines.feed([CallStart(0, "a", "now"), CallArguments(0, arguments)])
    with pytest.raises(ProviderInvalidResponse, match="not valid JSON"):
        lines.finish()


def test_arguments_for_a_call_that_has_ended_are_an_error() -> None:
    lines = encoder(101.0)
    lines.feed([CallStart(0, "a", "now"), CallArguments(0, "{}"), CallStart(1, "b", "later")])
    with pytest.raises(ProviderInvalidResponse, match="call 0, which has ended"):
        lines.feed([CallArguments(0, "{}")])


LAST = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 1_000_000_000,
    "load_duration": 0,
    "prompt_eval_count": 3,
    "prompt_eval_duration": 250_000_000,
    "eval_count": 4,
    "eval_duration": 500_000_000,
}
SAID: list[Piece] = [
    ReasoningPiece("Hm."),
    TextPiece("So"),
    UsagePiece(3, 4, prompt_seconds=0.25, completion_seconds=0.5),
]


@pytest.mark.parametrize("generate", [False, True], ids=["chat", "generate"])
def test_every_field_of_every_line(generate: bool) -> None:
    lines = encoder(101.0, generate=generate)
    head = {"model": "m", "created_at": "1970-01-01T00:01:41Z"}

    def line(text: str, **more: str) -> dict[str, object]:
        said = {**more, "response": text} if generate else {"message": {"role": "assistant", "content": text, **more}}
        return {**head, **said, "done": False}

    came = [*lines.feed(SAID), *lines.finish()]
    assert came == [line("", thinking="Hm."), line("So"), {**line(""), **LAST}]
    assert lines.whole(came) == {**line("So", thinking="Hm."), **LAST}
    assert encoder(101.0, generate=generate).loaded("load") == {**line(""), "done": True, "done_reason": "load"}


def test_a_generated_answer_without_thinking_has_none() -> None:
    lines = encoder(101.0, generate=True)
    whole = lines.whole([*lines.feed([TextPiece("S"), TextPiece("o")]), *lines.finish()])
    assert whole["response"] == "So"
    assert "thinking" not in whole


def test_a_call_that_the_limit_cut_is_left_out() -> None:
    lines = encoder(101.0)
    begun = lines.feed([CallStart(0, "a", "now"), CallArguments(0, '{"n": '), End("length")])
    (last,) = lines.finish()
    assert begun == []
    assert (last["done_reason"], "tool_calls" in last["message"]) == ("length", False)


def test_the_end_of_the_stream_repeats_calls_without_arguments() -> None:
    lines = encoder(101.0)
    lines.feed([CallStart(0, "a", "now"), CallStart(1, "b", "later")])
    assert lines.feed([CallArguments(0, "{}"), CallArguments(1, '{"n":1}'), UsagePiece(3, 4)]) == []
    call, last = lines.finish()
    assert call["message"]["tool_calls"] == [
        {"id": "b", "function": {"index": 1, "name": "later", "arguments": {"n": 1}}}
    ]
    assert last["eval_count"] == 4

"""How the server of MLX holds answers to a grammar and cuts prompts: its parts in this process, a real tokenizer."""

from __future__ import annotations

import json
import logging
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlx_lm")
pytest.importorskip("llguidance")

import llguidance

from gateway.engines import mlx_server
from gateway.engines.mlx_server import KEPT_GRAMMARS, KEPT_VOCABULARIES, Cutting, Grammars, Guard

NO_MARKS: frozenset[str] = frozenset()
WORD = 'start: "ab"'
ROOM = 7
"""Rows of the model beyond the tokenizer's."""


@pytest.fixture(scope="module")
def tokenizer(mlx_model: Path) -> Any:
    from mlx_lm.utils import load_tokenizer

    return load_tokenizer(mlx_model)


@pytest.fixture
def grammars(tokenizer: Any) -> Grammars:
    return Grammars(tokenizer)


def size(tokenizer: Any) -> int:
    return int(max(tokenizer.get_vocab().values())) + 1 + ROOM


@pytest.fixture
def step(tokenizer: Any) -> Callable[[Guard, int], set[int]]:
    """Which tokens may follow one."""
    import mlx.core as mx

    def after(guard: Guard, token: int) -> set[int]:
        given = mx.zeros((1, size(tokenizer)))
        masked = guard(mx.array([0, token]), given)
        assert masked.shape == given.shape
        return {index for index, value in enumerate(masked[0].tolist()) if value == 0.0}

    return after


def written(tokenizer: Any, tokens: set[int]) -> set[str]:
    return {tokenizer.decode([token]) for token in tokens}


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    """The arguments of each call of the owner's function from now on."""
    asked: list[tuple[Any, ...]] = []
    real = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        asked.append(args)
        return real(*args, **options)

    monkeypatch.setattr(owner, name, call)
    return asked


def token(tokenizer: Any, text: str) -> int:
    (found,) = tokenizer.encode(text, add_special_tokens=False)
    return int(found)


def test_only_what_the_grammar_allows_can_follow(tokenizer: Any, grammars: Grammars, step: Any) -> None:
    guard = Guard(grammars.matcher(WORD, NO_MARKS))
    first = step(guard, token(tokenizer, "x"))  # the prompt doesn't count
    assert written(tokenizer, first) <= {"a", "ab"}
    assert token(tokenizer, "a") in first
    second = step(guard, token(tokenizer, "a"))
    assert written(tokenizer, second) == {"b"}
    ends = step(guard, token(tokenizer, "b"))
    assert ends == set(tokenizer.eos_token_ids)
    # The answer is at its end: whatever comes now is nobody's business.
    end = next(iter(tokenizer.eos_token_ids))
    assert step(guard, end) == step(guard, end) == {*range(size(tokenizer))}


def test_the_same_mask_again_is_used_again(
    tokenizer: Any, grammars: Grammars, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = counted(monkeypatch, mlx_server, "token_flags")
    guard = Guard(grammars.matcher("start: /a+/", NO_MARKS))
    first = step(guard, 0)
    second = step(guard, token(tokenizer, "a"))
    assert second - first == set(tokenizer.eos_token_ids)
    assert len(made) == 2
    assert step(guard, token(tokenizer, "a")) == second
    assert len(made) == 2


def test_a_token_against_the_grammar_ends_it_and_is_told(
    tokenizer: Any, grammars: Grammars, step: Any, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard(grammars.matcher(WORD, NO_MARKS))
    step(guard, 0)
    every = {*range(size(tokenizer))}
    with caplog.at_level(logging.WARNING):
        assert step(guard, token(tokenizer, "x")) == every
        assert step(guard, token(tokenizer, "a")) == every
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the grammar has no effect any more"
    ]


def test_a_grammar_that_can_t_be_read_has_no_effect(grammars: Grammars, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert grammars.matcher("start: (", NO_MARKS) is None
    assert "the grammar has no effect:" in caplog.text
    assert "\n" not in caplog.records[0].getMessage()


def test_a_kept_grammar_begins_at_its_start(tokenizer: Any, grammars: Grammars, step: Any) -> None:
    used = Guard(grammars.matcher(WORD, NO_MARKS))
    first = step(used, 0)
    step(used, token(tokenizer, "a"))
    assert step(Guard(grammars.matcher(WORD, NO_MARKS)), 0) == first


def test_so_many_grammars_are_kept_the_latest_used(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = counted(monkeypatch, llguidance, "LLMatcher")
    texts = [f'start: "{number}"' for number in range(KEPT_GRAMMARS)]
    for text in (*texts, texts[0], WORD):
        assert grammars.matcher(text, NO_MARKS) is not None
    assert [text for _, text in compiled] == [*texts, WORD]
    for text in (*texts[2:], texts[0], WORD):
        grammars.matcher(text, NO_MARKS)
    assert len(compiled) == KEPT_GRAMMARS + 1
    grammars.matcher(texts[1], NO_MARKS)
    assert [text for _, text in compiled] == [*texts, WORD, texts[1]]


def test_a_mark_is_text_where_the_grammar_needs_it(tokenizer: Any, grammars: Grammars, step: Any) -> None:
    added, (end,) = tokenizer.get_added_vocab(), tokenizer.eos_token_ids
    mark = next(word for word, id in sorted(added.items()) if word[0] == "<" and id != end)
    grammar = f'start: ({json.dumps(mark)} | "<a") /.*/'
    plain = step(Guard(grammars.matcher(grammar, NO_MARKS)), 0)
    assert plain == {token(tokenizer, "<")}
    assert step(Guard(grammars.matcher(grammar, frozenset([mark]))), 0) == plain | {added[mark]}
    # An answer's end is never text.
    word = tokenizer.decode([end])
    assert step(Guard(grammars.matcher(f'start: ({json.dumps(word)} | "<a")', frozenset([word]))), 0) == plain


def test_vocabularies_are_kept_too(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch, llguidance, "TokenizerWrapper")
    sets = [frozenset([str(number)]) for number in range(KEPT_VOCABULARIES)]
    for text in (WORD, 'start: "c"'):
        for marks in sets:
            grammars.matcher(text, marks)
    assert len(made) == KEPT_VOCABULARIES
    # One more, and they begin anew.
    more = frozenset(["more"])
    for text in (WORD, 'start: "c"'):
        grammars.matcher(text, more)
    assert len(made) == KEPT_VOCABULARIES + 1
    for number, marks in enumerate(sets[: KEPT_VOCABULARIES - 1], 2):
        grammars.matcher('start: "d"', marks)
        assert len(made) == KEPT_VOCABULARIES + number
    grammars.matcher('start: "d"', more)
    assert len(made) == 2 * KEPT_VOCABULARIES


def test_a_mask_has_one_flag_for_each_row_of_the_model() -> None:
    first = [True, False, True, *[False] * 5]
    assert mlx_server.token_flags(bytes([0b101, 0b1]), 12).tolist() == [*first, True, *[False] * 3]
    assert mlx_server.token_flags(bytes([0b101, 0b1]), 3).tolist() == [True, False, True]
    assert mlx_server.token_flags(bytes([0b1]), 10).tolist() == [True, *[False] * 9]


@pytest.mark.parametrize(("draft", "takes"), [(None, True), ("draft", False)])
def test_a_draft_model_takes_no_grammars(draft: str | None, takes: bool) -> None:
    assert mlx_server.takes_grammars(Namespace(draft_model=draft)) is takes


# Prompts


def test_a_text_at_the_nonce_is_tokenised_on_its_own(tokenizer: Any) -> None:
    ends = tokenizer.decode([next(iter(tokenizer.eos_token_ids))])
    half = len(ends) // 2
    messages = [{"role": "user", "content": f"Say {ends[:half]}NONCE{ends[half:]} now"}]
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": f"Say {ends} now"}], tokenize=True, add_generation_prompt=True
    )
    cut = Cutting(tokenizer, "NONCE").apply_chat_template(messages, add_generation_prompt=True, ctxgate_nonce="NONCE")
    end = next(iter(tokenizer.eos_token_ids))
    assert [*whole].count(end) == [*cut].count(end) + 1
    assert tokenizer.decode(cut) == tokenizer.decode(whole)


def test_a_text_that_isn_t_tokenised_has_a_space_at_the_nonce(tokenizer: Any) -> None:
    cutting = Cutting(tokenizer, "NONCE")
    text = cutting.apply_chat_template([{"role": "user", "content": "oneNONCEtwo"}], tokenize=False)
    assert "one two" in text
    assert cutting.eos_token_ids == tokenizer.eos_token_ids


@pytest.mark.parametrize("given", [None, {}, {"ctxgate_nonce": ""}, {"ctxgate_nonce": 7}, {"other": "x"}, "text"])
def test_a_request_without_a_nonce_has_the_tokenizer_itself(given: Any) -> None:
    tokenizer = object()
    assert mlx_server.cutting(tokenizer, Namespace(chat_template_kwargs=given)) is tokenizer


def test_a_request_with_a_nonce_is_cut() -> None:
    assert isinstance(mlx_server.cutting(object(), Namespace(chat_template_kwargs={"ctxgate_nonce": "x"})), Cutting)


@pytest.mark.parametrize(("prompt", "asked", "maximum"), [(10, 5, 5), (10, 90, 90), (10, 91, 90), (99, 5, 1)])
def test_an_answer_ends_at_the_window(prompt: int, asked: int, maximum: int) -> None:
    args = Namespace(max_tokens=asked)
    mlx_server.fit(args, prompt, 100)
    assert args.max_tokens == maximum


@pytest.mark.parametrize("prompt", [100, 101])
def test_a_prompt_above_the_window_is_refused(prompt: int) -> None:
    with pytest.raises(ValueError, match=rf"request \({prompt} tokens\) .* context size \(100 tokens\)"):
        mlx_server.fit(Namespace(max_tokens=1), prompt, 100)


@pytest.mark.parametrize("private", [True, False])
def test_a_request_is_told_its_prompt_and_the_cache_what_to_keep_out(private: bool) -> None:
    kept: list[tuple[int, ...]] = []
    request = Namespace(private=private)
    mlx_server.note(Namespace(keep_out=kept.append), request, [1, 2])
    assert request.prompt == (1, 2)
    assert kept == ([(1, 2)] if private else [])
    mlx_server.note(object(), request, [1, 2])  # mlx_lm's own cache keeps nothing


# Requests


class Base:
    """What mlx_lm's handler does, as far as ours extends it."""

    def __init__(self, path: str, authorization: str | None, understood: bool = True) -> None:
        self.path = path
        self.headers = {} if authorization is None else {"Authorization": authorization}
        self.close_connection = False
        self.refused: list[tuple[int, str]] = []
        self._understood = understood

    def parse_request(self) -> bool:
        return self._understood

    def send_error(self, status: int, message: str) -> None:
        self.refused.append((status, message))


@pytest.mark.parametrize(
    ("key", "path", "given", "passes"),
    [
        (None, "/v1/chat/completions", None, True),
        ("", "/v1/chat/completions", None, True),
        ("k", "/v1/chat/completions", None, False),
        ("k", "/v1/chat/completions", "Bearer x", False),
        ("k", "/v1/chat/completions", "k", False),
        ("k", "/v1/chat/completions", "Bearer k", True),
        ("k", "/health", None, True),
        ("k", "/health/more", None, False),
    ],
)
def test_who_knows_the_key(
    key: str | None, path: str, given: str | None, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlx_server, "KEY", key)
    handler = mlx_server.keyed(Base)(path, given)
    assert handler.parse_request() is passes
    assert handler.close_connection is not passes
    assert [status for status, _ in handler.refused] == ([] if passes else [401])


def test_what_can_t_be_parsed_is_not_answered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlx_server, "KEY", "k")
    handler = mlx_server.keyed(Base)("/", None, understood=False)
    assert not handler.parse_request()
    assert handler.refused == []

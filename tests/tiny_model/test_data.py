"""The test model's training data: deterministic, in the dialect, and apart from what is held out."""

import ast
from collections.abc import Mapping
from itertools import islice
from random import Random
from typing import Any, get_args

import pytest

from scripts.tiny_model.data import conversations
from scripts.tiny_model.dialect import Call, Conversation, call_text, literal, render
from scripts.tiny_model.requests import Category
from scripts.tiny_model.tools import TOOLS
from scripts.tiny_model.values import Values

SAMPLE = 400


def sample(seed: int) -> list[Conversation]:
    return list(islice(conversations(seed), SAMPLE))


def test_same_seed_same_conversations() -> None:
    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_every_category_occurs() -> None:
    assert {category for made in sample(3) for category in made.categories} == set(get_args(Category))


def test_each_assistant_message_has_a_category() -> None:
    for made in sample(4):
        assert len(made.categories) == sum(message.role == "assistant" for message in made.messages)


def test_held_out_words_never_occur_in_training() -> None:
    training, held_out = Values(Random(5)), Values(Random(5), held_out=True)
    assert not {training.word() for _ in range(2000)} & {held_out.word() for _ in range(2000)}


def test_calls_use_listed_tools_and_their_declared_arguments() -> None:
    for made in sample(6):
        listed = {tool["function"]["name"] for tool in made.tools}
        for message in made.messages:
            for call in message.calls:
                assert call.name in listed
                schema = TOOLS[call.name]["function"]["parameters"]
                assert set(schema["required"]) <= set(call.arguments) <= set(schema["properties"])


def parsed(text: str) -> Call:
    """Python's own reading of a call."""
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Call)
    arguments: dict[str, Any] = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    return Call(ast.unparse(node.func), arguments)


def test_every_call_is_valid_python() -> None:
    for made in sample(7):
        for message in made.messages:
            for call in message.calls:
                assert parsed(call_text(call)) == call


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param('a "b"', '"a \\"b\\""', id="quotes"),
        pytest.param([[1, -2.5], []], "[[1, -2.5], []]", id="nested lists"),
        pytest.param({"on": True, "off": None}, '{"on": True, "off": None}', id="python's own literals"),
        pytest.param("é", '"é"', id="text is not escaped"),
    ],
)
def test_literal(value: Mapping[str, Any] | str, text: str) -> None:
    assert literal(value) == text


def test_only_what_the_model_writes_is_learned() -> None:
    for made in sample(8):
        pieces = render(made)
        for before, (text, learn) in zip([("", False), *pieces], pieces, strict=False):
            assert not learn or (before[0] == "<|im_start|>assistant\n" and text.endswith("<|im_end|>"))

"""What JSON and conversations can hold."""

from __future__ import annotations

from hypothesis import strategies as st

from gateway.provider import (
    AssistantMessage,
    ImageBlock,
    InlineSource,
    Message,
    RedactedThinkingBlock,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolMessage,
    UrlSource,
    UserMessage,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)

detail = st.sampled_from([None, "auto", "low", "high"])
images = st.builds(ImageBlock, st.builds(UrlSource, texts), st.none(), detail) | st.builds(
    ImageBlock, st.builds(InlineSource, texts), st.just("image/png"), detail
)
users = st.builds(UserMessage, texts | st.lists(st.builds(TextBlock, texts) | images, min_size=1, max_size=3))
signatures = st.none() | texts
answer_blocks = (
    st.builds(TextBlock, texts, signatures)
    | st.builds(ThinkingBlock, texts, signatures)
    | st.builds(RedactedThinkingBlock, texts)
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Any conversation that the contract allows, whoever's models wrote it."""
    messages: list[Message] = [SystemMessage(draw(texts))] if draw(st.booleans()) else []
    messages.append(draw(users))
    for _ in range(draw(st.integers(0, 3))):
        ids = draw(st.lists(texts, max_size=3, unique=True))
        arguments = st.dictionaries(texts, json_values, max_size=3)
        calls = [ToolCall(id, draw(texts), draw(arguments), draw(signatures)) for id in ids]
        messages.append(AssistantMessage(draw(texts | st.lists(answer_blocks, min_size=1, max_size=3)), calls))
        messages += [ToolMessage(draw(texts), call.id) for call in calls]
        messages.append(draw(users))
    return messages

"""How the tests behind some rows of the extended tier run, if the row itself doesn't say.

Most rows record what a parser returned in a passing test of its project. For the rows that differ from ours, this
module records how that test runs the text and which part of the answer it asserts, as its source shows (vLLM
0.33.0, SGLang's snapshot, Ollama's commit). Every row here is right by its source, and wrong without this. Rows that
are wrong by their source, too, are in ``conformance_exceptions.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.normalizers.splits import tool

Part = Literal["names", "calls", "these calls", "content", "reasoning"]
"""``these calls``: among the answer's calls are those of the row."""


@dataclass(frozen=True, slots=True)
class Source:
    asserts: tuple[Part, ...] = ("calls", "content", "reasoning")
    tools: tuple[dict[str, Any], ...] = ()
    """Tools that the test declares and the row leaves out."""
    reasoning_open: bool = False
    """The test's prompt opened the reasoning."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the format that the test needs and that differ from our defaults."""
    calls: tuple[tuple[str, dict[str, Any]], ...] | None = None
    """The calls that the test asserts, if they differ from the row's."""
    content: str | None = None
    prompted: str = ""
    """What the test's prompt wrote and its reasoning repeats."""
    stream: tuple[str, ...] = ()
    """The row records what one piece of a stream added: the first piece here that equals its text."""


_CALLS = Source(asserts=("calls",))
_NOTHING = Source(asserts=())
_DROPS = Source(policy={"after": "drop"})
_REFUSES = Source(asserts=("calls",), policy={"unknown_tools": "refuse"})
_RECORD = (tool("update_record", zipcode="string", count="integer"),)
_PLAIN_CALL = '<tool_call>{"name": "find_box", "arguments": {"s": 1, "g": 2}}</tool_call>'


def _glm(*pieces: str, **arguments: str) -> Source:
    return Source(asserts=("calls", "content"), stream=pieces, calls=((pieces[1].strip(), arguments),))


_WEATHER = _glm(
    "<tool_call>",
    "get_weather\n",
    "<arg_key>city</arg_key>",
    "<arg_value>",
    "X",
    "</arg_value>",
    "</tool_call>",
    city="X",
)
_CURRENT = _glm(
    *("<tool_call>", "get_current_weather\n", "<arg_key>city</arg_key>", "<arg_value>", "X", "</arg_value>"),
    *("</tool_call>",),
    city="X",
)
_K2_CALL = (
    '<ifm|tool_calls><ifm|tool_call>{"name": "lookup", "arguments": {"limit": 9223372036854775807}}'
    "</ifm|tool_call></ifm|tool_calls>"
)
_ORDER = tool(
    "create_order",
    user_id="integer",
    note="string",
    tags={"type": "array", "items": {"type": "string"}},
    shipping={"type": "object", "properties": {"zip": {"type": "integer"}}},
    either={"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]},
    free="object",
)
_ORDERS = Source(tools=(_ORDER,))
_DATE = _glm("<tool_call>", "get_current_date", "</tool_call>")

SOURCES: dict[str, Source] = {
    # Each is one delta of a streamed message; the test asserts only the whole message.
    **{
        f"granite4-vllm-{number:04}": Source(
            asserts=("calls", "content"), stream=tuple(_PLAIN_CALL), calls=(("find_box", {"s": 1, "g": 2}),)
        )
        for number in range(17, 41)
    },
    "glm47-vllm-0011": _DATE,
    "glm47-vllm-0012": _DATE,
    "glm47-vllm-0013": _WEATHER,
    "glm47-vllm-0014": _WEATHER,
    "glm47-vllm-0015": _WEATHER,
    "glm47-vllm-0021": _CURRENT,
    "glm47-vllm-0022": _CURRENT,
    **{
        f"k2_horizon-vllm-{number:04}": Source(
            asserts=("calls", "content"),
            stream=tuple(_K2_CALL),
            calls=(("lookup", {"limit": 9223372036854775807}),),
        )
        for number in range(6, 41)
        if number != 24
    },
    # The test declares tools that its row leaves out.
    **{f"minimax_m3-vllm-{number:04}": _ORDERS for number in (4, 5, 8, 15, 18)},
    # "Should not raise", without an assertion: each parser may treat malformed input in its own way.
    "deepseek_v3-vllm-0009": _NOTHING,
    "granite-vllm-0009": _NOTHING,
    "granite-vllm-0010": _NOTHING,
    "granite-vllm-0011": _NOTHING,
    "granite-vllm-0012": _NOTHING,
    "granite-vllm-0013": _NOTHING,
    "granite-vllm-0014": _NOTHING,
    "granite_20b_fc-vllm-0008": _NOTHING,
    "granite_20b_fc-vllm-0009": _NOTHING,
    "granite_20b_fc-vllm-0011": _NOTHING,
    "granite_20b_fc-vllm-0013": _NOTHING,
    "longcat-vllm-0009": _NOTHING,
    "step3-vllm-0002": _NOTHING,
    "step3-vllm-0003": _NOTHING,
    # Asserts that the content has no marker, which is true of every answer here.
    "granite-vllm-0026": _NOTHING,
    # Asserts that several spellings of an opener are treated alike, but not how.
    "deepseek_v4-vllm-0045": _NOTHING,
    "deepseek_v4-vllm-0046": _NOTHING,
    "deepseek_v4-vllm-0047": _NOTHING,
    # Asserts that two converters agree at every split, but not on which types.
    "gemma4-vllm-0068": Source(asserts=("names",)),
    "gemma4-vllm-0070": Source(asserts=("names",)),
    "gemma4-vllm-0078": Source(asserts=("names",)),
    "gemma4-vllm-0079": Source(asserts=("names",)),
    # Asserts what a piece of a stream adds, and that the rest comes later.
    "hunyuan-sgl-0022": Source(asserts=(), stream=("Hello <tool_",)),
    "dots-vllm-0008": Source(content="answer <dots_func"),
    # The test's expectation begins with what its prompt wrote.
    "apriel-llamacpp-0003": Source(prompted="Here are my reasoning steps:\n"),
    "apriel-llamacpp-0004": Source(prompted="Here are my reasoning steps:\n"),
    # Asserts the calls or their number, but not the text and reasoning beside them.
    "gigachat3-sgl-0001": _CALLS,
    "gigachat3-sgl-0006": _CALLS,
    "gigachat3-sgl-0018": _CALLS,
    "minicpm5-vllm-0014": _CALLS,
    "minicpm5-vllm-0015": _CALLS,
    "minicpm5-vllm-0004": _CALLS,
    "granite-vllm-0007": _CALLS,
    "phi4_mini-vllm-0005": _CALLS,
    "gemma4-vllm-0052": _CALLS,
    "gemma4-vllm-0053": _CALLS,
    "kimi_k2-sgl-0070": _CALLS,
    "kimi_k2-sgl-0077": _CALLS,
    "deepseek_v4-sgl-0064": Source(asserts=("names",)),
    "seed_oss-vllm-0018": Source(asserts=("these calls",), calls=(("get_weather", {"city": "Tokyo"}),)),
    # The second call fails by an exception that the test injects.
    "kimi_k2-sgl-0067": Source(asserts=("these calls",)),
    # The test declares tools whose schemas require text.
    "gemma4-vllm-0054": Source(tools=_RECORD),
    "gemma4-vllm-0055": Source(tools=_RECORD),
    # The test's prompt opened the reasoning; it asserts calls and content.
    "deepseek_v4-vllm-0021": Source(asserts=("calls", "content"), reasoning_open=True),
    "nemotron_v3-vllm-0003": Source(asserts=("calls", "content"), reasoning_open=True),
    # The test asserts the answers of two parsers to one text; this is the other parser's.
    "gemma4-vllm-0109": Source(content="Done."),
    # The project drops text after a call, and asserts it.
    "deepseek_v31-vllm-0002": _DROPS,
    "deepseek_v31-oll-0058": Source(asserts=("content", "reasoning"), policy={"after": "drop"}),
    "deepseek_v4-vllm-0014": _DROPS,
    "deepseek_v4-vllm-0017": _DROPS,
    "deepseek_v4-vllm-0018": _DROPS,
    "gemma4-sgl-0112": _DROPS,
    "kimi_k2-vllm-0027": Source(asserts=("calls", "content"), policy={"after": "drop"}),
    "step3p5-vllm-0014": _DROPS,
    "longcat-vllm-0006": _DROPS,
    "minimax_m3-vllm-0016": _DROPS,
    # The project refuses calls of undeclared tools, and asserts it.
    "glm45-sgl-0008": _REFUSES,
    "dots-vllm-0003": _REFUSES,
    "dots-vllm-0005": _REFUSES,
    "hunyuan-sgl-0005": _REFUSES,
    "hunyuan-sgl-0011": _REFUSES,
    "minicpm5-sgl-0019": _REFUSES,
    "minicpm5-vllm-0006": _REFUSES,
    "glm47-sgl-0047": _REFUSES,
    "minimax_m2-vllm-0021": _REFUSES,
    "minimax_m2-vllm-0022": _REFUSES,
    "minimax_m2-vllm-0024": _REFUSES,
}

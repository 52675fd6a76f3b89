"""What the tests behind some rows of the extended tier do, where the row itself doesn't say it.

Most rows are what a parser was *seen* to return in a passing test of its project. Here stands, for the rows that
differ from ours, how that test runs the text and which part of the answer it asserts at all, as read in the
sources that the rows name (vLLM 0.33.0, SGLang's snapshot, Ollama's commit). Each row here is right by its source
and would not be without this; those that are wrong by their source, too, stand in ``conformance_exceptions.json``.
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
    """Those that the test declares and the row leaves out."""
    reasoning_open: bool = False
    """The test's prompt has opened reasoning."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the format that hold where the test runs, and that are not our defaults."""
    calls: tuple[tuple[str, dict[str, Any]], ...] | None = None
    """The calls that the test asserts, where they are not the row's."""
    content: str | None = None
    stream: tuple[str, ...] = ()
    """The row is what one piece of a stream added: the first piece here that is its text, in a stream of ours."""


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
_DATE = _glm("<tool_call>", "get_current_date", "</tool_call>")

SOURCES: dict[str, Source] = {
    # One delta of a streamed message each, and the test asserts the whole message alone.
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
    # "Should not raise", and no assertion: what comes of malformed input is each parser's own affair.
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
    "granite_20b_fc-vllm-0012": _NOTHING,
    "granite_20b_fc-vllm-0013": _NOTHING,
    "granite_20b_fc-vllm-0014": _NOTHING,
    # No marker in the content, which holds for every answer here.
    "granite-vllm-0026": _NOTHING,
    # Several spellings of an opener are treated alike; what becomes of the text is not asserted.
    "deepseek_v4-vllm-0045": _NOTHING,
    "deepseek_v4-vllm-0046": _NOTHING,
    "deepseek_v4-vllm-0047": _NOTHING,
    # Two ways of converting agree at every split; which types come out is not asserted.
    "gemma4-vllm-0068": Source(asserts=("names",)),
    "gemma4-vllm-0070": Source(asserts=("names",)),
    "gemma4-vllm-0078": Source(asserts=("names",)),
    "gemma4-vllm-0079": Source(asserts=("names",)),
    # The calls, or that there is one; text and reasoning beside them are not asserted.
    "granite-vllm-0007": _CALLS,
    "phi4_mini-vllm-0005": _CALLS,
    "gemma4-vllm-0052": _CALLS,
    "gemma4-vllm-0053": _CALLS,
    "kimi_k2-sgl-0070": _CALLS,
    "kimi_k2-sgl-0077": _CALLS,
    "deepseek_v4-sgl-0064": Source(asserts=("names",)),
    "seed_oss-vllm-0018": Source(asserts=("these calls",), calls=(("get_weather", {"city": "Tokyo"}),)),
    # The second call fails by an exception that the test puts into the parser.
    "kimi_k2-sgl-0067": Source(asserts=("these calls",)),
    # The test declares tools, whose schemas want text.
    "gemma4-vllm-0054": Source(tools=_RECORD),
    "gemma4-vllm-0055": Source(tools=_RECORD),
    # The test's prompt has opened reasoning; it looks at calls and content.
    "deepseek_v4-vllm-0021": Source(asserts=("calls", "content"), reasoning_open=True),
    "nemotron_v3-vllm-0003": Source(asserts=("calls", "content"), reasoning_open=True),
    # The test has two parsers for one text and asserts both answers: this is the other one's.
    "gemma4-vllm-0109": Source(content="Done."),
    # The project drops text behind a call, and asserts it.
    "deepseek_v31-vllm-0002": _DROPS,
    "deepseek_v31-oll-0058": Source(asserts=("content", "reasoning"), policy={"after": "drop"}),
    "deepseek_v4-vllm-0014": _DROPS,
    "deepseek_v4-vllm-0017": _DROPS,
    "deepseek_v4-vllm-0018": _DROPS,
    "gemma4-sgl-0112": _DROPS,
    "kimi_k2-vllm-0027": Source(asserts=("calls", "content"), policy={"after": "drop"}),
    "step3p5-vllm-0014": _DROPS,
    # The project refuses calls of tools that nobody declared, and asserts it.
    "glm45-sgl-0008": _REFUSES,
    "glm47-sgl-0047": _REFUSES,
    "minimax_m2-vllm-0021": _REFUSES,
    "minimax_m2-vllm-0022": _REFUSES,
    "minimax_m2-vllm-0024": _REFUSES,
}

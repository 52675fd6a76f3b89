"""`prepare` decides what an engine gets; no engine is needed to see it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import ProviderInvalidRequest
from gateway.request.prepare import (
    MAX_KEPT,
    ModelCapabilities,
    Prepared,
    RequestSettings,
    Terms,
    TermsCache,
    ToolsIn,
    blocks,
    derive_terms,
    prepare,
    prepare_prompt,
)
from gateway.schema.checker import compiled
from gateway.wire.chat import ChatRequest
from gateway.wire.nulls import MAX_KEPT_BYTES
from normalizers import registry
from normalizers.spec import MAX_CALLS
from normalizers.write.grammar import grammar
from normalizers.write.instructions import WORDINGS, render_instructions

Json = dict[str, Any]

HERMES, NATIVE = registry.get("hermes"), registry.get("native_json")
USER: Json = {"role": "user", "content": "Hi"}
CALL: Json = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
PAST: list[Json] = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
]
BY_SCHEMA: Json = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "required": ["n"]}}}


def tool(name: str) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def prepared(capabilities: ModelCapabilities, **wanted: Any) -> Prepared:
    """wanted: see `worked_out`."""
    request, settings, terms = asked(capabilities, **wanted)
    return prepare(request, settings, capabilities, terms)


def worked_out(capabilities: ModelCapabilities, **wanted: Any) -> Terms:
    return asked(capabilities, **wanted)[2]


def asked(
    capabilities: ModelCapabilities,
    *,
    messages: list[Json] | None = None,
    runtime: str = "llama.cpp",
    settings: RequestSettings | None = None,
    **fields: Any,
) -> tuple[ChatRequest, RequestSettings, Terms]:
    settings = settings or RequestSettings.of(
        runtime, defaults={}, strip=(), force={}, engine_enforces=False, compile=compiled, write=grammar
    )
    body = {"model": "m", "messages": messages or [USER], **fields}
    request = ChatRequest.parse(json.dumps(body).encode())
    return request, settings, TermsCache().get(request, capabilities) or derive_terms(request, settings, capabilities)


def sent(one: Prepared) -> Json:
    return {name: json.loads(bytes(value)) for name, value in one.fields.items()}


@pytest.mark.parametrize("role", ["system", "developer"])
def test_tools_go_into_the_prompt_of_a_model_whose_engine_takes_none(role: str) -> None:
    capabilities = ModelCapabilities(HERMES, HERMES, tools_in="system", takes_tools=False)
    plain = sent(prepared(capabilities, tools=[tool("now")], tool_choice="auto", parallel_tool_calls=True))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & plain.keys()
    assert [message["role"] for message in plain["messages"]] == ["system", "user"]
    assert '"name": "now"' in plain["messages"][0]["content"]

    first = {"role": role, "content": "Be brief."}
    own = sent(prepared(capabilities, messages=[first, USER], tools=[tool("now")]))
    assert [message["role"] for message in own["messages"]] == [role, "user"], "one system message, not two"
    assert own["messages"][0]["content"].startswith("Be brief.\n\n")


def test_the_template_lists_the_tools_and_the_system_message_explains_them() -> None:
    capabilities = ModelCapabilities(HERMES, HERMES, tools_in="both")
    one = sent(prepared(capabilities, messages=[*PAST, USER], tools=[tool("now")]))
    assert one["tools"] == [tool("now")]
    system, *others = one["messages"]
    assert system["role"] == "system"
    assert "<tool_call>" in system["content"], "the form of a call"
    assert '"now"' not in system["content"], "the list itself is the template's"
    assert others == [*PAST, USER], "past calls, too"
    forced = {"type": "function", "function": {"name": "now"}}
    one = sent(prepared(capabilities, tools=[tool("now"), tool("later")], tool_choice=forced))
    assert one["messages"][0]["content"].endswith("This time call now, whatever is said.")
    assert "tools" in sent(prepared(capabilities, runtime="openai", tools=[{"type": "web_search"}])), (
        "the server's business"
    )


@pytest.mark.parametrize("tools_in", ["system", "both"])
def test_the_wording_is_that_of_the_model(tools_in: ToolsIn) -> None:
    for wording in WORDINGS:
        capabilities = ModelCapabilities(HERMES, HERMES, tools_in=tools_in, wording=wording)
        (system, _) = sent(prepared(capabilities, tools=[tool("now")]))["messages"]
        assert system["content"].endswith(render_instructions(HERMES, ["now"], wording))
        assert prompt(capabilities, [USER], tools=[tool("now")])["messages"][0] == system, "counted as it is sent"


@pytest.mark.parametrize("runtime", ["llama.cpp", "llama-cpp-python", "mlx", "ollama", "openai", "my.mod:Backend"])
def test_a_custom_tool_is_refused_on_every_runtime(runtime: str) -> None:
    custom = {"type": "custom", "custom": {"name": "g"}}
    choices: list[Any] = [None, custom, "required"]
    for tools in ([custom], [tool("now"), custom]):
        for choice in choices:
            with pytest.raises(ProviderInvalidRequest, match="no tools of type 'custom' on this API") as caught:
                prepared(ModelCapabilities(HERMES, HERMES), runtime=runtime, tools=tools, tool_choice=choice)
            assert caught.value.param == f"tools[{len(tools) - 1}].type"


def test_past_calls_become_text_with_the_tools() -> None:
    capabilities = ModelCapabilities(HERMES, HERMES, tools_in="system", takes_tools=False)
    _, _, called, result = sent(prepared(capabilities, messages=PAST, tools=[tool("now")]))["messages"]
    assert "tool_calls" not in called
    assert '"now"' in called["content"]
    assert (result["role"], "noon" in result["content"]) == ("user", True)


def test_a_result_in_text_names_its_tool() -> None:
    """By the id of its call, or by its own name; several calls of one message are told apart."""
    capabilities = ModelCapabilities(PLAIN := registry.get("mistral"), PLAIN, tools_in="system", takes_tools=False)
    assert not PLAIN.result, "a format without its own form of results"
    other = {"id": "call_2", "type": "function", "function": {"name": "later", "arguments": "{}"}}
    messages = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL, other]},
        {"role": "tool", "tool_call_id": "call_2", "content": "soon"},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "tool", "tool_call_id": "call_2", "name": "renamed", "content": {"at": 5}},
    ]
    *_, first, second, third = sent(prepared(capabilities, messages=messages, tools=[tool("now")]))["messages"]
    assert [first["content"], second["content"], third["content"]] == [
        "Result of later:\nsoon",
        "Result of now:\nnoon",
        'Result of renamed:\n{"at": 5}',
    ]


@pytest.mark.parametrize(
    ("keeps_calls", "takes_tools", "roles"),
    [
        pytest.param(True, True, ["user", "assistant", "tool"], id="the template shows both"),
        pytest.param(False, True, ["user", "assistant", "tool"], id="it drops calls"),
        pytest.param(False, False, ["user", "assistant", "user"], id="it knows no tools at all"),
    ],
)
def test_past_calls_of_a_template_that_drops_them(keeps_calls: bool, takes_tools: bool, roles: list[str]) -> None:
    capabilities = ModelCapabilities(HERMES, HERMES, takes_tools=takes_tools, keeps_calls=keeps_calls)
    messages = sent(prepared(capabilities, messages=PAST))["messages"]
    assert [message["role"] for message in messages] == roles
    assert ("tool_calls" in messages[1]) is keeps_calls


def test_an_engine_that_reads_calls_itself_gets_them_as_they_are() -> None:
    one = prepared(ModelCapabilities(NATIVE, NATIVE, keeps_calls=False), messages=PAST, tools=[tool("now")])
    assert sent(one)["messages"] == PAST
    assert sent(one)["tools"] == [tool("now")]


def test_choice_none_hides_the_tools() -> None:
    fields = sent(prepared(ModelCapabilities(HERMES, HERMES), tools=[tool("now")], tool_choice="none"))
    assert not {"tools", "tool_choice"} & fields.keys()


@pytest.mark.parametrize(("mode", "choice"), [("auto", "auto"), ("required", "required")])
def test_allowed_tools_are_all_that_the_engine_sees(mode: str, choice: str) -> None:
    listed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "later"}}]}
    fields = sent(
        prepared(
            ModelCapabilities(NATIVE, NATIVE),
            tools=[tool("now"), tool("later")],
            tool_choice={"type": "allowed_tools", "allowed_tools": listed},
        )
    )
    assert fields["tools"] == [tool("later")]
    assert fields["tool_choice"] == choice


@pytest.mark.parametrize(
    ("runtime", "words", "format"),
    [
        ("mlx", True, None),
        ("ollama", False, BY_SCHEMA),  # it enforces a schema by itself
        ("llama-cpp-python", True, {"type": "json_object"}),
        ("openai", False, BY_SCHEMA),
    ],
)
def test_a_schema_that_the_engine_does_not_understand_is_put_into_words(
    runtime: str, words: bool, format: Json | None
) -> None:
    one = prepared(ModelCapabilities(NATIVE, NATIVE), runtime=runtime, response_format=BY_SCHEMA)
    fields = sent(one)
    assert fields.get("response_format") == format
    assert ("JSON Schema" in fields["messages"][0]["content"]) is words
    assert worked_out(ModelCapabilities(NATIVE, NATIVE), runtime=runtime, response_format=BY_SCHEMA).check is not None


def test_a_grammar_that_the_engine_did_not_take_leaves_a_check() -> None:
    one = worked_out(ModelCapabilities(HERMES, HERMES, notation="gbnf"), tools=[tool("now")], tool_choice="required")
    assert one.method == "grammar"
    assert one.raw is not None
    assert one.raw.grammar
    taken, refused = one.enforced(by_grammar=True), one.enforced(by_grammar=False)
    assert taken is not None
    assert refused is not None
    assert (taken.method, taken.check) == ("grammar", None)
    assert (refused.method, refused.check) == ("checked", one.check)


@pytest.mark.parametrize(
    "fields",
    [{"tools": [tool("now")], "tool_choice": "required"}, {"response_format": BY_SCHEMA}],
    ids=["call", "json"],
)
def test_mlx_is_checked_unless_its_server_takes_grammars(fields: Json) -> None:
    plain = worked_out(ModelCapabilities(HERMES, HERMES), runtime="mlx", **fields)
    assert (plain.method, plain.raw) == ("checked", None)
    assert plain.check is not None
    held = worked_out(ModelCapabilities(HERMES, HERMES, notation="lark"), runtime="mlx", **fields)
    assert held.method == "grammar"
    assert held.raw is not None
    assert held.raw.grammar is not None
    assert held.raw.grammar.startswith("start: ")


def test_calls_that_the_model_decides_on_get_a_grammar() -> None:
    capabilities = ModelCapabilities(HERMES, HERMES, notation="gbnf")
    raw = worked_out(capabilities, tools=[tool("now")]).raw
    assert raw is not None
    assert raw.grammar is not None
    assert raw.in_reasoning is not None
    assert raw.starts == ("<tool_call>",)
    harmony = registry.get("harmony")
    terms = worked_out(ModelCapabilities(harmony, harmony, notation="gbnf"), tools=[tool("now")])
    assert terms.raw is not None
    assert terms.raw.grammar is None


@pytest.mark.parametrize(
    ("format", "wanted", "by_grammar", "piecewise"),
    [
        ("hermes", "guarded", True, True),
        ("hermes", "guarded", False, False),
        ("harmony", "guarded", True, False),
        ("harmony", "always", False, True),
        ("hermes", "never", True, False),
    ],
)
def test_calls_leave_in_pieces_if_a_grammar_holds_them(
    format: str, wanted: Any, by_grammar: bool, piecewise: bool
) -> None:
    spec = registry.get(format)
    terms = worked_out(ModelCapabilities(spec, spec, notation="gbnf"), tools=[tool("now")])
    assert terms.piecewise(wanted, by_grammar) is piecewise


def test_a_constraint_that_nobody_can_enforce_is_refused() -> None:
    with pytest.raises(ProviderInvalidRequest, match="tool_choice: runtime echo"):
        prepared(ModelCapabilities(NATIVE, NATIVE), runtime="echo", tools=[tool("now")], tool_choice="required")


def test_terms_are_kept_for_requests_with_the_same_tools_and_constraint() -> None:
    capabilities = ModelCapabilities(HERMES, HERMES, notation="gbnf")
    settings = RequestSettings.of(
        "llama.cpp", defaults={}, strip=(), force={}, engine_enforces=False, compile=compiled, write=grammar
    )

    def request(name: str, *messages: Json, **fields: Any) -> ChatRequest:
        body = {"messages": messages or [USER], "tools": [tool(name)], "tool_choice": "required", **fields}
        return ChatRequest.parse(json.dumps(body).encode())

    cache = TermsCache()
    first = request("now")
    assert cache.get(first, capabilities) is None
    cache.keep(first, capabilities, terms := derive_terms(first, settings, capabilities))
    assert cache.get(request("now", *PAST, temperature=1), capabilities) is terms
    others = (request("later"), request("now", tool_choice="auto"), request("now", parallel_tool_calls=False))
    assert [cache.get(other, capabilities) for other in others] == [None, None, None]
    assert cache.get(first, ModelCapabilities(HERMES, HERMES)) is None
    free = request("now", tool_choice=None)
    assert cache.get(free, capabilities) is None
    cache.keep(free, capabilities, decided := derive_terms(free, settings, capabilities))
    assert cache.get(request("now", *PAST, tool_choice=None), capabilities) is decided
    assert cache.get(request("later", tool_choice=None), capabilities) is None
    assert cache.get(request("now", tool_choice=None, parallel_tool_calls=False), capabilities) is None
    assert cache.get(first, capabilities) is terms
    for number in range(MAX_KEPT):
        cache.keep(request(f"t{number}"), capabilities, terms)
    assert cache.get(first, capabilities) is None, "the oldest goes first"
    long = request("now", tools=[tool("x" * 4000) for _ in range(MAX_KEPT_BYTES // 4000 + 1)])
    cache.keep(long, capabilities, terms)
    assert cache.get(long, capabilities) is None


def test_terms_of_so_many_requests_are_kept() -> None:
    capabilities = ModelCapabilities(HERMES, HERMES)
    settings = RequestSettings.of(
        "llama.cpp", defaults={}, strip=(), force={}, engine_enforces=False, compile=compiled, write=grammar
    )
    cache = TermsCache()
    asked = [ChatRequest.parse(json.dumps({"messages": [USER], "tools": [tool(f"t{at}")]}).encode()) for at in range(3)]
    terms = derive_terms(asked[0], settings, capabilities)
    for one in asked:
        cache.keep(one, capabilities, terms)
    for number in range(MAX_KEPT - 2):
        body = {"messages": [USER], "tools": [tool(f"more{number}")]}
        cache.keep(ChatRequest.parse(json.dumps(body).encode()), capabilities, terms)
    assert [cache.get(one, capabilities) for one in asked] == [None, terms, terms]


@pytest.mark.parametrize(
    ("notation", "fields", "expected"),
    [
        (None, {"tools": [tool("now")]}, False),
        ("gbnf", {}, False),
        ("gbnf", {"tools": [tool("now")]}, True),
        (None, {"response_format": {"type": "json_object"}}, True),
        (None, {"tools": [tool("now")], "tool_choice": "required"}, True),
    ],
)
def test_what_may_write_a_grammar_goes_to_another_process(notation: Any, fields: Json, expected: bool) -> None:
    asked = ChatRequest.parse(json.dumps({"messages": [USER], **fields}).encode())
    assert blocks(asked, ModelCapabilities(HERMES, HERMES, notation=notation)) is expected


@pytest.mark.parametrize("kind", [["string", "null"], None, "array", [None]])
def test_types_that_a_schema_may_have(kind: Any) -> None:
    function = {"name": "now", "parameters": {"type": kind}}
    prepared(ModelCapabilities(NATIVE, NATIVE), tools=[{"type": "function", "function": function}])


@pytest.mark.parametrize("kind", ["objekt", ["string", "nul"], 7])
def test_types_that_no_schema_has(kind: Any) -> None:
    function = {"name": "now", "parameters": {"type": kind}}
    with pytest.raises(ProviderInvalidRequest, match=r"there is no type .*; allowed: object, array") as caught:
        prepared(ModelCapabilities(NATIVE, NATIVE), tools=[tool("now"), {"type": "function", "function": function}])
    assert caught.value.param == "tools[1].function.parameters"


def written(*tools: Json, **options: Any) -> str:
    found = grammar(HERMES, tools, **options)
    assert found is not None
    return found.text


@pytest.mark.parametrize(("parallel", "calls"), [(True, MAX_CALLS), (False, 1)])
def test_a_grammar_allows_one_call_unless_several_may_come(parallel: bool, calls: int) -> None:
    capabilities = ModelCapabilities(HERMES, HERMES, notation="gbnf")
    tools = [tool("now"), tool("later")]
    one = worked_out(capabilities, tools=tools, tool_choice="required", parallel_tool_calls=parallel)
    assert one.raw is not None
    assert one.raw.grammar == written(*tools, calls=calls)
    named = {"type": "function", "function": {"name": "now"}}
    one = worked_out(capabilities, tools=tools, tool_choice=named, parallel_tool_calls=parallel)
    assert one.raw is not None
    assert one.raw.grammar == written(*tools, only=["now"], calls=1)


@pytest.mark.parametrize(
    ("strip", "force", "expected"),
    [
        pytest.param((), {}, {"temperature": 2.0, "max_completion_tokens": 7}, id="the caller's own"),
        pytest.param(("temperature",), {}, {"temperature": 0.5, "max_completion_tokens": 7}, id="stripped"),
        pytest.param(("max_tokens",), {}, {"temperature": 2.0, "max_tokens": 9}, id="stripped by its other name"),
        pytest.param((), {"max_tokens": 5}, {"temperature": 2.0, "max_tokens": 5}, id="forced by its other name"),
    ],
)
def test_fields_that_config_yaml_decides(strip: tuple[str, ...], force: Json, expected: Json) -> None:
    settings = RequestSettings.of(
        "openai",
        defaults={"temperature": 0.5, "max_tokens": 9},
        strip=strip,
        force=force,
        engine_enforces=False,
        compile=compiled,
        write=grammar,
    )
    fields = sent(
        prepared(ModelCapabilities(NATIVE, NATIVE), settings=settings, temperature=2.0, max_completion_tokens=7)
    )
    assert {name: value for name, value in fields.items() if name not in ("model", "messages")} == expected


def prompt(capabilities: ModelCapabilities, messages: list[Json], **fields: Any) -> Json:
    settings = RequestSettings.of(
        "llama.cpp", defaults={}, strip=(), force={}, engine_enforces=False, compile=compiled, write=grammar
    )
    request = ChatRequest.parse(json.dumps({"messages": messages, **fields}).encode())
    return {name: json.loads(bytes(value)) for name, value in prepare_prompt(request, settings, capabilities).items()}


def test_a_prompt_whose_tokens_are_counted_is_the_one_that_is_sent() -> None:
    into_text = ModelCapabilities(HERMES, HERMES, tools_in="system", takes_tools=False)
    counted = prompt(into_text, PAST, tools=[tool("now")])
    assert counted["messages"] == sent(prepared(into_text, messages=PAST, tools=[tool("now")]))["messages"]
    assert "tools" not in counted
    by_template = prompt(ModelCapabilities(HERMES, HERMES), PAST, tools=[tool("now")])
    assert by_template == {"messages": PAST, "tools": [tool("now")]}
    both = ModelCapabilities(HERMES, HERMES, tools_in="both")
    explained = prompt(both, PAST, tools=[tool("now")])
    whole = sent(prepared(both, messages=PAST, tools=[tool("now")]))
    assert (explained["messages"], explained["tools"]) == (whole["messages"], whole["tools"])
    assert prompt(both, PAST) == {"messages": PAST}, "without tools there is nothing to explain"


@pytest.mark.parametrize(
    "capabilities", [ModelCapabilities(HERMES, HERMES), ModelCapabilities(HERMES, HERMES, tools_in="system")]
)
def test_a_broken_past_is_repaired_before_it_is_counted(capabilities: ModelCapabilities) -> None:
    orphan = [USER, {"role": "tool", "tool_call_id": "x", "content": "noon"}]
    assert [message["role"] for message in prompt(capabilities, orphan)["messages"]] == ["user", "user"]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": 5, "tool_calls": [CALL]}, "messages[1].content"),
        ({"content": {"text": "x"}, "tool_calls": [CALL]}, "messages[1].content"),
        ({"content": "", "tool_calls": {"0": CALL}}, "messages[1].tool_calls"),
        ({"content": "", "tool_calls": [CALL, {"id": "x"}]}, "messages[1].tool_calls[1]"),
        ({"content": "", "tool_calls": ["now"]}, "messages[1].tool_calls[0]"),
    ],
)
def test_a_past_call_that_no_text_can_express_is_refused(message: Json, param: str) -> None:
    capabilities = ModelCapabilities(HERMES, HERMES, tools_in="system", takes_tools=False)
    with pytest.raises(ProviderInvalidRequest) as caught:
        prepared(capabilities, messages=[USER, {"role": "assistant", **message}], tools=[tool("now")])
    assert caught.value.param == param


def test_a_past_call_is_written_behind_what_the_model_said() -> None:
    capabilities = ModelCapabilities(HERMES, HERMES, tools_in="system", takes_tools=False)
    parts = [{"type": "text", "text": "So:"}]
    for content in ("So:", parts):
        messages = [USER, {"role": "assistant", "content": content, "tool_calls": [CALL]}]
        (_, _, called) = sent(prepared(capabilities, messages=messages, tools=[tool("now")]))["messages"]
        if isinstance(content, str):
            assert called["content"].startswith("So:")
            assert '"now"' in called["content"]
        else:
            assert called["content"][0] == parts[0]
            assert '"now"' in called["content"][1]["text"]


# Bounds


def of_length(size: int) -> Json:
    """A JSON Schema of so many bytes."""
    bare: Json = {"type": "object", "description": ""}
    return {**bare, "description": "x" * (size - len(json.dumps(bare, separators=(",", ":"))))}


@pytest.mark.parametrize(("more", "taken"), [(0, True), (1, False)], ids=["at the bound", "beyond"])
def test_the_schemas_of_tools_and_text_may_have_a_megabyte_together(more: int, taken: bool) -> None:
    tools = [tool("now")]
    size = 2**20 + more - len(json.dumps(tools, separators=(",", ":")))
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": of_length(size)}}
    body = {"messages": [USER], "tools": tools, "response_format": schema}
    request = ChatRequest.parse(json.dumps(body, separators=(",", ":")).encode())
    settings = RequestSettings.of(
        "llama.cpp", defaults={}, strip=(), force={}, engine_enforces=False, compile=compiled, write=grammar
    )
    capabilities = ModelCapabilities(HERMES, HERMES, notation="gbnf")
    if taken:
        assert derive_terms(request, settings, capabilities).guarded
        return
    with pytest.raises(ProviderInvalidRequest, match="longer than 1048576 bytes"):
        derive_terms(request, settings, capabilities)


@pytest.mark.parametrize(("more", "taken"), [(0, True), (1, False)], ids=["at the bound", "beyond"])
def test_a_schema_may_have_a_megabyte(more: int, taken: bool) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": of_length(2**20 + more)}}
    body = {"messages": [USER], "response_format": schema}
    request = ChatRequest.parse(json.dumps(body, separators=(",", ":")).encode())
    settings = RequestSettings.of(
        "ollama", defaults={}, strip=(), force={}, engine_enforces=False, compile=compiled, write=grammar
    )
    capabilities = ModelCapabilities(NATIVE, NATIVE)
    if taken:
        assert derive_terms(request, settings, capabilities).method == "engine"
        return
    with pytest.raises(ProviderInvalidRequest, match="longer than 1048576 bytes") as caught:
        derive_terms(request, settings, capabilities)
    assert caught.value.param == "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("choice", "strict", "more", "expected"),
    [
        pytest.param("auto", False, 0, "grammar", id="at the bound"),
        pytest.param("auto", False, 1, "no grammar", id="beyond"),
        pytest.param("auto", True, 0, "grammar", id="strict, at the bound"),
        pytest.param("auto", True, 1, "refused", id="strict, beyond"),
        pytest.param("required", False, 0, "grammar", id="forced, at the bound"),
        pytest.param("required", False, 1, "refused", id="forced, beyond"),
    ],
)
def test_the_schemas_of_tools_may_have_a_megabyte(choice: str, strict: bool, more: int, expected: str) -> None:
    function: Json = {"name": "now", **({"strict": True} if strict else {}), "parameters": {}}
    around = len(json.dumps([{"type": "function", "function": function}], separators=(",", ":"))) - len("{}")
    function["parameters"] = of_length(2**20 + more - around)
    body = {"messages": [USER], "tools": [{"type": "function", "function": function}], "tool_choice": choice}
    request = ChatRequest.parse(json.dumps(body, separators=(",", ":")).encode())
    settings = RequestSettings.of(
        "llama.cpp", defaults={}, strip=(), force={}, engine_enforces=False, compile=compiled, write=grammar
    )
    capabilities = ModelCapabilities(HERMES, HERMES, notation="gbnf")
    if expected == "refused":
        with pytest.raises(ProviderInvalidRequest, match="longer than 1048576 bytes") as caught:
            derive_terms(request, settings, capabilities)
        assert caught.value.param == "tools"
        return
    raw = derive_terms(request, settings, capabilities).raw
    assert raw is not None
    assert (raw.grammar is not None) is (expected == "grammar")

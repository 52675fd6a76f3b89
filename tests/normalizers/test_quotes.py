"""What quotes a call: fences and inline code, by Markdown's rules. Any other text before a call leaves it a call."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normalizers import TextDelta, ToolCall, coalesce, get, names
from normalizers.write.render import render_calls
from tests.normalizers.splits import parse, run, tool
from tests.support.thorough import examples

TOOLS = [tool("ping")]
FORMATS = [name for name in names() if get(name).open and not get(name).begun]
CLOSED = {
    "a fence": "Here:\n```python\nx = 1\n```",
    "a fence and a line break": "Here:\n```python\nx = 1\n```\n",
    "a fence and a blank": "Here:\n```python\nx = 1\n``` ",
    "a fence of Windows": "Here:\r\n```python\r\nx = 1\r\n```\r\n",
    "tildes": "Here:\n~~~\nx\n~~~",
    "a fence that a longer one ends": "```\nx\n`````\n",
    "a long fence around a short one": "````md\n```\nx\n```\n````\n",
    "a long fence around a lone short one": "````\n```\n````\n\n",
    "a fence around tildes": "```sh\n~~~\n```\n\n",
    "tildes around a fence": "~~~\n```\n~~~\n\n",
    "a fence around one with a word": "```\n```sh\n```\n\n",
    "a fence around indented ones": '```python\n"""\n    ```\n"""\n```\n\n',
    "a fence in a list": "1. x\n   ```sh\n   ls\n   ```\n\n",
    "a fence in a deep list": "1. x\n    - y\n        ```sh\n        ls\n        ```\n\n",
    "a fence behind a dash": "- ```sh\n  ls\n  ```\n\n",
    "a fence in a quotation": "> ```sh\n> ls\n> ```\n\n",
    "an empty fence": "```\n```\n",
    "inline code": "Now I run `ls`",
    "inline code and a blank": "Now I run `ls` ",
    "inline code of two": "Use ``a`b``",
    "inline code of three": "```ls``` is what I run: ",
    "inline code in a fence's place": "```ls```\n",
    "two of inline code": "`a` and `b`",
    "an escaped back-tick": "The sign \\`",
    "a back-tick that isn't closed": "Don't use ` here: ",
    "a back-tick in the line before": "It costs `5\nand more.\n",
    "a fence in a sentence": "Close it with ``` first.\n\n",
    "a fence at a sentence's end": "The fence is ```.\n\n",
    "a fence in code": '```python\ns = "```"\nprint(s)\n```\n\n',
    "a back-tick in code": "```js\nconst t = `x\n```\n\n",
    "a fence with words behind it": "```\nx\n```done\n```\n\n",
    "words between tildes": "~~~done~~~\n\n",
    "tildes in a sentence": "It is ~~~ 5.\n\n",
    "a fence in HTML": "<pre>```</pre>\n\n",
    "a fence behind words": "I run this: ```bash\nls\n```\n\nNow:\n",
    "a fence behind bold words": "**Step 1** ```\nls\n```\nNow:\n",
    "a fence behind words in a list": "1. Run ```sh\nls\n```\n2. Now:\n",
    "a fence in one of Markdown": "```markdown\n# Use\n```bash\nls\n```\nDone.\n```\n\nNow:\n",
    "two fences in one of Markdown": "```md\n```sh\nls\n```\n\n```c++\nx\n```\n```\n",
    "a fence in a fence in one of Markdown": "```mdx\n```md\n```sh\nls\n```\n```\n```\n",
    "tildes in a fence of Markdown": "```md\n~~~sh\n~~~\n```\n",
    "a fence of Markdown behind words": "README: ```md\n```sh\nls\n```\n```\n",
    "a short fence in a long one of Markdown": "````md\n```sh\n````\n",
}
"""Texts in which nothing is open."""
QUOTED = {
    "back-ticks": "Write `{}` to call it.",
    "double back-ticks": "Write ``{}`` to call it.",
    "back-ticks and blanks": "Write ` {} ` to call it.",
    "back-ticks with words": "Write `call {} now` to call it.",
    "double back-ticks around a back-tick": "Write `` `{} ` `` to call it.",
    "back-ticks behind others": "Not `this`, write `{}`.",
    "triple back-ticks": "Write ```{}``` to call it.",
    "triple back-ticks at a line's start": "```{}``` is the call.",
    "a fence behind a sentence with one": "Use ``` like this:\n\n```\n{}\n```\nThat is all.",
    "code that holds a fence": '```python\nf = "```"\nt = """\n{}\n"""\n```\n\nThat is the test.',
    "a fence behind inline code": "```ls``` and:\n```\n{}\n```\nThat is all.",
    "a fence behind escaped back-ticks": "The sign \\```\n```\n{}\n```\nThat is all.",
    "a longer fence": "````\n```\n{}\n```\n````\nThat is all.",
    "a fence that an indented one doesn't end": "```\n    ```\n{}\n```\nThat is all.",
    "a fence that words don't end": "```\n```sh\n{}\n```\nThat is all.",
    "tildes that back-ticks don't end": "~~~\n```\n{}\n~~~\nThat is all.",
    "a fence in a list": "1. x\n   ```\n   {}\n   ```\n\nThat is all.",
    "a fence behind a dash": "- ```\n  {}\n  ```\n\nThat is all.",
    "a fence in a quotation": "> ```\n> {}\n> ```\n\nThat is all.",
    "a fence behind a closed one": "```\nx\n```\n\n```\n{}\n```\nThat is all.",
    "an unclosed fence": "```\n{}\nThat is all.",
    "a fence behind words": "A call looks like this: ```xml\n{}\n```\nDo you want me to run it?",
    "a fence without a word behind words": "**Example:** ```\n{}\n```\nThat is all.",
    "a fence behind a letter": "a) ```\n{}\n```\nThat is all.",
    "a fence in HTML": "<pre>```\n{}\n```</pre>\nThat is all.",
    "a fence of Markdown": "```markdown\n# Calls\n{}\n```\nThat is all.",
    "a fence in one of Markdown": "```markdown\n# Calls\n```xml\n{}\n```\nMore.\n```\nThat is all.",
    "behind a fence in one of Markdown": "```markdown\n```bash\nls\n```\nThen\n{}\n```\nThat is all.",
    "directly behind a fence in one of Markdown": "```md\n```bash\nls\n```{}\n```\nThat is all.",
}


ONE_LINE = ("back-ticks and blanks", "back-ticks with words")
"""What isn't looked for beyond the line."""


def written(name: str) -> str:
    return render_calls(get(name), [ToolCall("functions.ping:0", "ping", "{}")]).strip("\n")


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_closed_quotes_no_call(name: str) -> None:
    for text in CLOSED.values():
        message = parse(name, text + written(name), TOOLS, random_splits=2, unknown_tools="refuse")
        assert [call.name for call in message.tool_calls] == ["ping"], text
        assert message.content.strip() == text.strip()


@pytest.mark.parametrize("name", FORMATS)
def test_a_quoted_call_is_text(name: str) -> None:
    call = written(name)
    for place, form in QUOTED.items():
        if ("\n" in call and place in ONE_LINE) or ("```" in call and "back-tick" in place):
            continue
        text = form.format(call)
        for pieces in ([text], list(text)):
            assert coalesce(run(name, pieces, TOOLS, unknown_tools="refuse")) == [TextDelta(text)], pieces


@pytest.mark.parametrize("name", [name for name in FORMATS if get(name).think])
def test_so_it_is_in_reasoning(name: str) -> None:
    """There, a call counts that ends the answer."""
    call = written(name)
    for text in CLOSED.values():
        message = parse(name, text + call, TOOLS, random_splits=2, unknown_tools="refuse", reasoning_open=True)
        assert [call.name for call in message.tool_calls] == ["ping"], text
        assert message.reasoning.strip() == text.strip()
    for text in ("The form is `", "Like this:\n```", "Not `this` but ``"):
        message = parse(name, text + call, TOOLS, random_splits=2, unknown_tools="refuse", reasoning_open=True)
        assert (message.reasoning, message.tool_calls) == (text + call, [])


@pytest.mark.parametrize("name", ["hermes", "glm45"])
def test_a_quoted_call_on_several_lines_keeps_its_end(name: str) -> None:
    text = f"Write `{written(name)}` to call it."
    assert parse(name, text, TOOLS, unknown_tools="refuse").content == text


STRAY = {
    "hermes": '<tool_call>{"name": "run", "arguments": {"command": "%s"}}</tool_call>',
    "qwen3_coder": "<tool_call><function=run><parameter=command>%s</parameter></function></tool_call>",
    "glm45": "<tool_call>run<arg_key>command</arg_key><arg_value>%s</arg_value></tool_call>",
}


@pytest.mark.parametrize("name", STRAY)
@pytest.mark.parametrize(
    ("before", "command"), [("The stray ` goes. ", "sed 's/`//' x"), ("I look for ``foo''. ", "grep ``bar'' x")]
)
def test_back_ticks_in_its_arguments_quote_no_call(name: str, before: str, command: str) -> None:
    text = before + STRAY[name] % command
    tools = [tool("run", command="string")]
    assert [call.name for call in parse(name, text, tools, cuts=True).tool_calls] == ["run"]
    quoted = f"Write `{before.replace('`', '')}{STRAY[name] % command}` to call it."
    if command.count("``") != 1:
        assert parse(name, quoted, tools, cuts=True).content == quoted


SIGNS = (
    "`",
    "``",
    "```",
    "````",
    "~~~",
    "~~~~",
    "`" * 70,
    "~" * 66,
    "\n",
    "\n\n",
    " ",
    "    ",
    "> ",
    "- ",
    "1. ",
    "```md",
    "```sh\n",
    "\\",
    "x",
)


@pytest.mark.parametrize("name", [name for name in names() if not get(name).untouched])
@given(data=st.data())
@settings(max_examples=examples(60))
def test_any_split_quotes_the_same(name: str, data: st.DataObject) -> None:
    spec = get(name)
    marks = {*spec.open, *spec.begins, *spec.close, *(mark for pair in spec.think for mark in pair)}
    parts = st.sampled_from([*SIGNS, *SIGNS, written(name), *sorted(marks)])
    text = "".join(data.draw(st.lists(parts, max_size=12)))
    opened = data.draw(st.booleans())
    parse(name, text, TOOLS, random_splits=2, unknown_tools="refuse", reasoning_open=opened)

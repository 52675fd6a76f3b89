"""llama-server's own HTTP API, from the wheel `xllamacpp`.

Runs as a script, by path, in its own process, on the standard library and xllamacpp alone, with `xllamacpp_options`
beside it: its command line is llama-server's. Prints the address that the system chose on standard output once the
model is loaded.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def main() -> None:
    # Saved prompts hold conversations.
    os.umask(0o077)

    import xllamacpp

    if sys.argv[1:] == ["--list-devices"]:
        sys.stdout.write(devices())
        return
    try:
        server = xllamacpp.Server(parameters(sys.argv[1:]))
    except ValueError as error:
        sys.exit(f"xllamacpp_server: {error}")
    except RuntimeError as error:
        # llama.cpp printed the reason on standard error; a traceback would only push it out of the last lines.
        sys.exit(str(error))
    url = urlsplit(server.listening_address)
    sys.stdout.write(json.dumps({"ctxgate": {"host": url.hostname, "port": url.port}}) + "\n")
    sys.stdout.flush()
    # SIGTERM kills the process at once: tearing the model down takes longer than freeing its memory.
    while True:
        signal.pause()


def parameters(argv: Sequence[str]) -> Any:
    """xllamacpp's CommonParams for llama-server's command line. Raises ValueError for one that can't be taken."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cache_ram_mib = int(os.environ.get("LLAMA_ARG_CACHE_RAM", "8192"))
    params.cache_idle_slots = False
    params.use_jinja = True
    params.verbosity = 2
    # Only the gateway uses this server; web pages must not.
    params.cors_origins = "localhost"
    params.ui = False
    # Pings show that the server lives, not that it works on the answer.
    params.sse_ping_interval = -1
    if key := os.environ.get("LLAMA_API_KEY"):
        params.api_keys = [key]
    if "--spec-type" not in argv and (kind := os.environ.get("LLAMA_ARG_SPEC_TYPE")):
        argv = ["--spec-type", kind, *argv]
    given = _beside("xllamacpp_options.py").apply(params, argv)
    if not params.model.path:
        raise ValueError("--model is missing")
    if params.n_ctx and "-fit" not in given and not gpus():
        # Otherwise llama.cpp reads the model twice, the first time to see how much of it fits on GPUs.
        params.fit_params = False
    return params


def devices() -> str:
    """What `llama-server --list-devices` prints."""
    mib = 1024 * 1024
    lines = [
        f"{device['name']}: {device['description']} ({device['memory_total'] // mib} MiB, "
        f"{device['memory_free'] // mib} MiB free)"
        for device in gpus()
    ]
    return "\n  ".join(["Available devices:", *(lines or ["(none)"])]) + "\n"


def _beside(name: str) -> Any:
    """A module by its path from here: the engine's Python may not have the gateway."""
    path = Path(__file__).with_name(name)
    spec = spec_from_file_location(f"ctxgate_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gpus() -> list[dict[str, Any]]:
    import xllamacpp

    cpu = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    return [device for device in xllamacpp.get_device_info() if device["type"] != cpu]


if __name__ == "__main__":
    main()

"""llama-server's own HTTP API, from the wheel `xllamacpp`.

Runs as a script, by path, in its own process, on the standard library and xllamacpp alone. Prints the address that the
system chose on standard output once the model is loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def main() -> None:
    args = parse()
    # Saved prompts hold conversations.
    os.umask(0o077)

    import xllamacpp

    try:
        server = xllamacpp.Server(parameters(args))
    except RuntimeError as error:
        # llama.cpp printed the reason on standard error; a traceback would only push it out of the last lines.
        sys.exit(str(error))
    url = urlsplit(server.listening_address)
    sys.stdout.write(json.dumps({"ctxgate": {"host": url.hostname, "port": url.port}}) + "\n")
    sys.stdout.flush()
    # SIGTERM kills the process at once: tearing the model down takes longer than freeing its memory.
    while True:
        signal.pause()


def parse() -> argparse.Namespace:
    """The options that recipes pass, and those of llama-server's that a model's `args` may well hold."""
    parser = argparse.ArgumentParser(prog="xllamacpp_server")
    parser.add_argument("--model", "-m", required=True)
    parser.add_argument("--mmproj", default="")
    parser.add_argument("--alias")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ctx-size", "-c", type=int, default=0, help="divided by the slots; 0: the model's own each")
    parser.add_argument("--parallel", "-np", type=int, default=1, help="slots")
    parser.add_argument("--threads", "-t", type=int, default=1)
    parser.add_argument("--embeddings", "--embedding", action="store_true")
    parser.add_argument("--reranking", "--rerank", action="store_true")
    parser.add_argument("--batch-size", "-b", type=int)
    parser.add_argument("--ubatch-size", "-ub", type=int)
    parser.add_argument("--gpu-layers", "--n-gpu-layers", "-ngl", type=int, default=-1)
    parser.add_argument("--chat-template-file", type=Path)
    parser.add_argument("--pooling", choices=["none", "mean", "cls", "last", "rank"])
    parser.add_argument("--slot-save-path", default="", help="folder for saved prompts, with its last slash")
    parser.add_argument(
        "--cache-ram", "-cram", type=int, default=int(os.environ.get("LLAMA_ARG_CACHE_RAM", "8192")), help="in MiB"
    )
    parser.add_argument("--no-warmup", dest="warmup", action="store_false", help="answer the first request sooner")
    parser.add_argument("--warmup", action="store_true", default=True)
    parser.add_argument("--verbosity", type=int, default=2)
    parser.add_argument("--jinja", action="store_true", help="always on; read because llama-server's users write it")
    return parser.parse_args()


def parameters(args: argparse.Namespace) -> Any:
    """xllamacpp's CommonParams for these options."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = args.model
    if args.mmproj:
        params.mmproj.path = args.mmproj
    if args.alias:
        params.model_alias = {args.alias}
    params.hostnames = [args.host]
    params.port = args.port
    params.n_parallel = args.parallel
    params.n_ctx = args.ctx_size
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    params.n_gpu_layers = args.gpu_layers
    params.embedding = args.embeddings or args.reranking
    if pooling := args.pooling or ("rank" if args.reranking else None):
        params.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    if args.batch_size:
        params.n_batch = args.batch_size
    if args.ubatch_size:
        params.n_ubatch = args.ubatch_size
    params.slot_save_path = args.slot_save_path
    params.cache_ram_mib = args.cache_ram
    params.cache_idle_slots = False
    params.warmup = args.warmup
    if args.ctx_size and not _has_gpu():
        # Otherwise llama.cpp reads the model twice, the first time to see how much of it fits on GPUs.
        params.fit_params = False
    params.use_jinja = True
    if args.chat_template_file is not None:
        params.chat_template = args.chat_template_file.read_text("utf-8")
    params.verbosity = args.verbosity
    # Only the gateway uses this server; web pages must not.
    params.cors_origins = "localhost"
    params.ui = False
    # Pings show that the server lives, not that it works on the answer.
    params.sse_ping_interval = -1
    return params


def _has_gpu() -> bool:
    import xllamacpp

    cpu = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    return any(device["type"] != cpu for device in xllamacpp.get_device_info())


if __name__ == "__main__":
    main()

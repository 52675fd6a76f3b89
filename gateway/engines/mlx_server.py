"""mlx_lm.server with five changes that the gateway needs.

- It refuses a prompt above `--context-window` with both token counts, and ends answers there: mlx_lm itself reads
  prompts of any length, for minutes.
- `/health` answers 200 only once the model is loaded.
- A dead generation thread ends the process, which would answer every further request with an error.
- Where a request's texts hold the text of a control token, the gateway marks it with a nonce and names that among the
  template's arguments. The prompt is cut there before it is tokenised, so the text never becomes the token.
- With `--prompt-folder` it saves prompts; see `mlx_prompts`.

Runs as a script, by path, on the standard library and mlx_lm alone, with two files beside it. It passes all other
arguments to mlx_lm.server. The overridden methods are those of mlx-lm 0.32.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

NONCE_FIELD = "ctxgate_nonce"


class Cutting:
    """A tokenizer that cuts rendered prompts at the nonce and tokenises the pieces apart."""

    def __init__(self, tokenizer: Any, nonce: str) -> None:
        self._tokenizer = tokenizer
        self._nonce = nonce

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def apply_chat_template(self, messages: Any, *, tokenize: bool = True, **options: Any) -> Any:
        options.pop(NONCE_FIELD, None)
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, **options)
        if not tokenize:  # with images, whose processor takes a text
            return text.replace(self._nonce, " ")
        pieces = text.split(self._nonce)
        return [id for piece in pieces for id in self._tokenizer.encode(piece, add_special_tokens=False)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="mlx_server", add_help=False)
    parser.add_argument("--context-window", type=int)
    parser.add_argument("--prompt-folder", type=Path)
    parser.add_argument("--prompt-save", default="on_stop")
    parser.add_argument("--prompt-model", default="")
    parser.add_argument("--prompt-min-tokens", type=int, default=512)
    parser.add_argument("--prompt-max-bytes", type=int, default=1 << 63)
    parser.add_argument("--prompt-max-age-days", type=float, default=7.0)
    own, rest = parser.parse_known_args()
    sys.argv = [sys.argv[0], *rest]

    from mlx_lm import server

    base: Any = server.ResponseGenerator
    missing = [name for name in ("_tokenize", "_run_generate", "generation_available") if not hasattr(base, name)]
    if missing:
        sys.exit(f"this mlx-lm has no {', '.join(missing)}: install 'mlx-lm>=0.32,<0.33'")

    class ResponseGenerator(base):  # type: ignore[misc]
        @property
        def is_healthy(self) -> bool:
            return bool(self.generation_available()) and self.model_provider.model is not None

        def _run_generate(self) -> None:
            saved = self.prompt_cache if own.prompt_folder is not None else None
            super()._run_generate()
            if saved is not None and not self._generation_failed:
                saved.save_all()
            if self._generation_failed:
                sys.stderr.flush()
                os._exit(1)

        def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
            given = args.chat_template_kwargs
            nonce = given.get(NONCE_FIELD) if isinstance(given, dict) else None
            if isinstance(nonce, str) and nonce:
                tokenizer = Cutting(tokenizer, nonce)
            result = super()._tokenize(tokenizer, request, args)
            prompt, window = len(result[0]), own.context_window
            if window is not None:
                if prompt >= window:
                    raise ValueError(f"request ({prompt} tokens) exceeds the available context size ({window} tokens)")
                args.max_tokens = min(args.max_tokens, window - prompt)
            return result

    server.ResponseGenerator = ResponseGenerator
    if own.prompt_folder is not None:
        os.umask(0o077)
        _save_prompts(server, own, rest)
        # mlx_lm ends in order on Ctrl-C alone.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    server.main()


def _save_prompts(server: Any, own: argparse.Namespace, rest: list[str]) -> None:
    """Replaces mlx_lm's prompt cache by one with files."""
    keys, prompts = _beside("../prompts/key.py"), _beside("mlx_prompts.py")
    model = Path(rest[rest.index("--model") + 1])
    files = sorted(path for path in model.iterdir() if path.is_file())
    own_options = [option for option in keys.options(rest) if option != str(model)]
    facts = [keys.fingerprint(files), own_options, [version(project) for project in ("mlx", "mlx-lm")]]
    key = keys.key("mlx", *facts)

    def cache(size: int) -> Any:
        return prompts.SavedPromptCache(
            size,
            folder=own.prompt_folder,
            key=key,
            model=own.prompt_model,
            each_turn=own.prompt_save == "each_turn",
            min_tokens=own.prompt_min_tokens,
            max_bytes=own.prompt_max_bytes,
            max_age_days=own.prompt_max_age_days,
        )

    server.LRUPromptCache = cache


def _beside(name: str) -> Any:
    """A module by its path from here: the engine's Python may not have the gateway."""
    path = (Path(__file__).parent / name).resolve()
    spec = spec_from_file_location(f"ctxgate_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()

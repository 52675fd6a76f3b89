"""mlx_lm.server with four changes that the gateway needs.

- It refuses a prompt above `--context-window` with both token counts, and ends answers there: mlx_lm itself reads
  prompts of any length, for minutes.
- `/health` answers 200 only once the model is loaded.
- A dead generation thread ends the process, which would answer every further request with an error.
- Where a request's texts hold the text of a control token, the gateway marks it with a nonce and names that among the
  template's arguments. The prompt is cut there before it is tokenised, so the text never becomes the token.

Runs as a script, by path, on the standard library and mlx_lm alone. It passes all other arguments to mlx_lm.server. The
overridden methods are those of mlx-lm 0.32.
"""

from __future__ import annotations

import argparse
import os
import sys
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
            super()._run_generate()
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
    server.main()


if __name__ == "__main__":
    main()

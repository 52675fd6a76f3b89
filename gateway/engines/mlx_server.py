"""mlx_lm.server with seven changes that the gateway needs.

- It refuses a prompt above `--context-window` with both token counts, and ends answers there: mlx_lm itself reads
  prompts of any length, for minutes.
- `/health` answers 200 only once the model is loaded, and says whether the server takes grammars.
- If llguidance is installed, it constrains an answer by a grammar in the field `ctxgate` of a chat request. It returns
the text of such an answer as the model wrote it, and says so in headers.
- A dead generation thread ends the process, which would answer every further request with an error.
- Where a request's texts hold the text of a control token, the gateway marks it with a nonce and names that among the
  template's arguments. The prompt is cut there before it is tokenised, so the text never becomes the token.
- It reuses a prompt only for the owner whom the field `ctxgate_owner` names; see `mlx_prompts`.
- With `--prompt-folder` it saves prompts; see `mlx_prompts`.

Runs as a script, by path, on the standard library, mlx_lm and llguidance alone, with two files beside it. It passes all
other arguments to mlx_lm.server. The overridden methods are those of mlx-lm 0.32.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from hmac import compare_digest
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

KEPT_GRAMMARS = 32
"""Compiled grammars to keep: agents send the same tools with every turn."""

KEPT_VOCABULARIES = 4

GRAMMAR_HEADER, REASONING_HEADER = "ctxgate-grammar", "ctxgate-reasoning"
"""Set on a response that a grammar constrains, and on one whose text begins within reasoning."""
RESTORED_HEADER = "ctxgate-restored"
"""How many tokens of the prompt came from a saved one."""


OWNER_FIELD = "ctxgate_owner"
"""The field that says whose prompts the answer may reuse."""
NONCE_FIELD = "ctxgate_nonce"

KEY = os.environ.get("LLAMA_API_KEY")
"""The key that requests must send as bearer token, from the same variable as llama-server's. None: no key."""


class Cutting:
    """A tokenizer that splits rendered prompts at the nonce and tokenises the pieces separately."""

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


class Grammars:
    """Compiles grammars for one model's tokenizer, and keeps them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._vocabularies: dict[frozenset[str], Any] = {}
        self._compiled: OrderedDict[tuple[str, frozenset[str]], Any] = OrderedDict()

    def matcher(self, grammar: str, marks: frozenset[str]) -> Any:
        """A matcher at its start; None if llguidance can't read the grammar. marks: special tokens that are text."""
        import llguidance

        with self._lock:
            key = (grammar, marks)
            if key not in self._compiled:
                self._compiled[key] = llguidance.LLMatcher(self._vocabulary(marks), grammar)
                if len(self._compiled) > KEPT_GRAMMARS:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(key)
            first = self._compiled[key]
            if first.is_error():
                logging.warning("the grammar has no effect: %s", first.get_error().partition("\n")[0])
                return None
            return first.deep_copy()

    def _vocabulary(self, marks: frozenset[str]) -> Any:
        import llguidance

        if marks not in self._vocabularies:
            if len(self._vocabularies) >= KEPT_VOCABULARIES:
                self._vocabularies.clear()
            ends = sorted(self._tokenizer.eos_token_ids)
            words = llguidance.TokenizerWrapper(_Vocabulary(self._tokenizer._tokenizer, ends, marks))
            self._vocabularies[marks] = llguidance.LLTokenizer(words, eos_token=ends)
        return self._vocabularies[marks]


class _Vocabulary:
    """The model's tokens for llguidance, which would let no text hold a special token, such as the mark of a call."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, ends: list[int], marks: frozenset[str]) -> None:
        import llguidance

        self._own = own = llguidance.LLTokenizer(tokenizer.backend_tokenizer.to_str(), eos_token=ends)
        as_text = {token: word for word, token in tokenizer.get_added_vocab().items() if word in marks}
        as_text = {token: word for token, word in as_text.items() if token not in ends}
        every = range(own.vocab_size)
        self.eos_token_id = ends[0]
        self.tokens = [as_text[token].encode() if token in as_text else own.decode_bytes([token]) for token in every]
        self.special_token_ids = [token for token in every if own.is_special_token(token) and token not in as_text]

    def __call__(self, text: bytes | str) -> list[int]:
        tokens: list[int] = self._own.tokenize_bytes(text if isinstance(text, bytes) else text.encode())
        return tokens


class Guard:
    """Constrains one answer by a grammar. A logits processor of mlx_lm; never raises: that would end the process."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._begun = False
        self._last: tuple[bytes, Any] = (b"", None)

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """tokens: the prompt and what the model has written. logits: for the next token, in one row."""
        if self._matcher is None:
            return logits
        try:
            return self._masked(tokens, logits)
        except Exception as error:  # noqa: BLE001 - see above
            logging.warning("the grammar has no effect any more: %s", error)
            self._matcher = None
            return logits

    def _masked(self, tokens: Any, logits: Any) -> Any:
        import mlx.core as mx

        matcher = self._matcher
        if self._begun:
            if matcher.is_stopped():
                self._matcher = None  # the answer's end has come
                return logits
            if not matcher.consume_token(tokens[-1].item()):
                raise RuntimeError(matcher.get_error().partition("\n")[0])
        self._begun = True
        bits = matcher.compute_bitmask()
        if matcher.is_error():
            raise RuntimeError(matcher.get_error().partition("\n")[0])
        if bits != self._last[0]:
            self._last = bits, mx.array(token_flags(bits, logits.shape[-1]))
        return mx.where(self._last[1], logits, -mx.inf)


def token_flags(bits: bytes, size: int) -> Any:
    """One boolean for each of `size` tokens; the model may have more than the tokenizer."""
    import numpy as np

    flags: Any = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little").astype(bool)
    return np.pad(flags[:size], (0, max(0, size - len(flags))))


def takes_grammars(cli_args: Any) -> bool:
    """Whether grammars can constrain answers: a draft model would take tokens back."""
    return find_spec("llguidance") is not None and cli_args.draft_model is None


def handler(base: Any, *, saves_prompts: bool) -> Any:
    """mlx_lm's APIHandler with grammars and reports on saved prompts."""

    class APIHandler(base):  # type: ignore[misc]
        chat: Any = None

        def handle_chat_completions(self) -> Any:
            self.chat = request = super().handle_chat_completions()
            request.guard = request.in_reasoning = None
            request.begins_in_reasoning = False
            request.private = self.body.get("cache_prompt") is False
            request.prompt = None
            wanted = self.body.get("ctxgate")
            if isinstance(wanted, dict) and takes_grammars(self.response_generator.cli_args):
                matcher = self.response_generator.grammars.matcher
                marks = frozenset(wanted["markers"])
                request.guard = matcher(wanted["grammar"], marks)
                if wanted["in_reasoning"] and self.response_generator.model_provider.tokenizer.has_thinking:
                    request.in_reasoning = matcher(wanted["in_reasoning"], marks)
            return request

        def _set_completion_headers(self, status_code: int = 200) -> None:
            super()._set_completion_headers(status_code)
            self._own_headers(status_code)

        def _set_stream_headers(self, status_code: int = 200) -> None:
            super()._set_stream_headers(status_code)
            self._own_headers(status_code)

        def _own_headers(self, status_code: int) -> None:
            if status_code != 200 or self.chat is None:
                return
            cache = self.response_generator.prompt_cache if saves_prompts else None
            if cache is not None and self.chat.prompt is not None:
                self.send_header(RESTORED_HEADER, str(cache.restored.pop(self.chat.prompt, 0)))
            if self.chat.guard is not None:
                self.send_header(GRAMMAR_HEADER, "held")
                if self.chat.begins_in_reasoning:
                    self.send_header(REASONING_HEADER, "open")

        def handle_health_check(self) -> None:
            healthy = self.response_generator.is_healthy
            self._set_completion_headers(200 if healthy else 503)
            self.end_headers()
            state = {
                "status": "ok" if healthy else "unavailable",
                "grammars": "lark" if takes_grammars(self.response_generator.cli_args) else None,
            }
            self.wfile.write(json.dumps(state).encode())
            self.wfile.flush()

    return APIHandler


def telling(base: Any) -> Any:
    """A handler whose answers name the stop word that ended them, and the log-probability of every token, streamed or
    not; mlx_lm streams none, and gives those of the likeliest token for those of the one that was written."""

    class TellingHandler(base):  # type: ignore[misc]
        asked: Any = None

        def handle_completion(self, request: Any, stop_words: Any) -> None:
            request.stopped_by, request.written = None, []
            self.asked = request
            super().handle_completion(request, stop_words)

        def generate_response(self, text: str, finish_reason: Any, *args: Any, **fields: Any) -> Any:
            answer = super().generate_response(text, finish_reason, *args, **fields)
            choice = answer["choices"][0]
            choice.pop("logprobs", None)
            if self.asked.written:
                choice["logprobs"], self.asked.written = {"content": self.asked.written}, []
            if finish_reason is not None and self.asked.stopped_by is not None:
                choice |= {"finish_reason": "stop", "stop_reason": self.asked.stopped_by}
            return answer

    return TellingHandler


def owned(base: Any) -> Any:
    """A handler that notes whose request it is."""

    class OwnedHandler(base):  # type: ignore[misc]
        def handle_completion(self, request: Any, stop_words: list[str]) -> None:
            request.owner = str(self.body.get(OWNER_FIELD, ""))
            super().handle_completion(request, stop_words)

    return OwnedHandler


def keyed(base: Any) -> Any:
    """A handler that refuses requests without the key; as with llama-server, `/health` needs none."""

    class KeyedHandler(base):  # type: ignore[misc]
        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            given = self.headers.get("Authorization", "")
            if not KEY or self.path == "/health" or compare_digest(given.encode(), f"Bearer {KEY}".encode()):
                return True
            self.close_connection = True
            self.send_error(401, "the key is missing or wrong")
            return False

    return KeyedHandler


def cutting(tokenizer: Any, args: Any) -> Any:
    """The tokenizer for a request, whose template's arguments may name a nonce."""
    given = args.chat_template_kwargs
    nonce = given.get(NONCE_FIELD) if isinstance(given, dict) else None
    return Cutting(tokenizer, nonce) if isinstance(nonce, str) and nonce else tokenizer


def fit(args: Any, size: int, window: int) -> None:
    """Ends the answer at the context window. Raises ValueError for a prompt of `size` tokens that exceeds it."""
    if size >= window:
        raise ValueError(f"request ({size} tokens) exceeds the available context size ({window} tokens)")
    args.max_tokens = min(args.max_tokens, window - size)


def note(cache: Any, request: Any, prompt: list[int]) -> None:
    """Tells the request its prompt, and the cache whose it is, and if it saves, of one that leaves nothing."""
    request.prompt = tuple(prompt)
    if hasattr(cache, "begin"):
        cache.begin(request.prompt, getattr(request, "owner", ""))
    if getattr(request, "private", False) and hasattr(cache, "keep_out"):
        cache.keep_out(request.prompt)


def stopping(ctx: Any, answer: Any, request: Any, words: Sequence[str]) -> Any:
    """The answer's pieces, to the first stop word in their text; tells the request which it was.

    mlx_lm compares tokens. Where the model writes a word in others, it leaves out the word and goes on, and where it
    finds one, it may lose the text before it.
    """
    held: list[Any] = []
    for piece in answer:
        held.append(piece)
        if piece.finish_reason == "stop":  # its text is the end's mark
            break
        text = "".join(one.text for one in held)
        if begins := [(at, word) for word in words if word and (at := text.find(word)) >= 0]:
            at, request.stopped_by = min(begins)
            ctx.stop()
            yield from cut(held, at)
            return
        begun = max(
            (size for word in words for size in range(min(len(word), len(text) + 1)) if text.endswith(word[:size])),
            default=0,
        )
        while held and len(text) - len(held[0].text) >= begun:
            text = text[len(held[0].text) :]
            yield held.pop(0)
    yield from held


def measured(answer: Any, request: Any, tokenizer: Any, *, wanted: bool) -> Any:
    """The answer's pieces; if that is wanted, tells the request the log-probability of each, and of the likeliest in
    its place."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"id": token, "token": tokenizer.decode([token]), "logprob": logprob}

    for piece in answer:
        if wanted and piece.finish_reason != "stop":  # the token of the end
            likeliest = sorted(piece.top_tokens, key=lambda one: -one["logprob"])
            others = [entry(one["id"], one["logprob"]) for one in likeliest]
            request.written.append({**entry(piece.token, piece.logprob), "top_logprobs": others})
        yield piece


def cut(pieces: Sequence[Any], at: int) -> Any:
    """The pieces with the first `at` characters of their text alone. All count as written.

    At the limit, mlx_lm gives out all text; at a stop, it drops some.
    """
    for place, piece in enumerate(pieces, 1):
        text = piece.text[: max(0, at)]
        at -= len(piece.text)
        yield replace(piece, text=text, finish_reason="length" if place == len(pieces) else None)


def generator(server: Any, window: int | None, *, saves_prompts: bool) -> Any:
    """mlx_lm's ResponseGenerator with a context window, grammars, cut and saved prompts, and an end."""
    from mlx_lm.generate import TextStateMachine

    class ResponseGenerator(server.ResponseGenerator):  # type: ignore[misc]
        @property
        def is_healthy(self) -> bool:
            return bool(self.generation_available()) and self.model_provider.model is not None

        @functools.cached_property
        def grammars(self) -> Grammars:
            return Grammars(self.model_provider.tokenizer)

        def _run_generate(self) -> None:
            saved = self.prompt_cache if saves_prompts else None
            super()._run_generate()
            if saved is not None and not self._generation_failed:
                saved.save_all()
            if self._generation_failed:
                sys.stderr.flush()
                os._exit(1)

        def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
            prompt, segments, kinds, state, vision = super()._tokenize(cutting(tokenizer, args), request, args)
            if window is not None:
                fit(args, len(prompt), window)
            note(self.prompt_cache, request, prompt)
            args.guard = None
            if getattr(request, "guard", None) is not None:
                request.begins_in_reasoning = state == "reasoning"
                if request.begins_in_reasoning:
                    request.guard = request.in_reasoning
                args.guard = request.guard
            return prompt, segments, kinds, state, vision

        def generate(self, request: Any, generation_args: Any, progress_callback: Any = None) -> Any:
            words, generation_args.stop_words = generation_args.stop_words, []
            ctx, answer = super().generate(request, generation_args, progress_callback)
            if getattr(request, "guard", None) is not None:
                # The text as it is: mlx_lm's own reader of calls and reasoning stays out of it.
                ctx.initial_state, ctx.text_sm = "normal", TextStateMachine()
            pieces = stopping(ctx, answer, request, words)
            return ctx, measured(pieces, request, self.model_provider.tokenizer, wanted=generation_args.logprobs)

    return ResponseGenerator


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

    names = ("_tokenize", "_run_generate", "generation_available", "generate")
    missing = [name for name in names if not hasattr(server.ResponseGenerator, name)]
    handlers = (
        *("handle_chat_completions", "handle_completion", "generate_response", "handle_health_check"),
        *("_set_completion_headers", "_set_stream_headers"),
    )
    missing += [name for name in handlers if not hasattr(server.APIHandler, name)]
    missing += [name for name in ("_make_logits_processors", "_run_http_server") if not hasattr(server, name)]
    if missing:
        sys.exit(f"this mlx-lm has no {', '.join(missing)}: install 'mlx-lm>=0.32,<0.33'")

    processors = server._make_logits_processors

    def with_guard(args: Any) -> Any:
        # Always after `_tokenize`, with the same `args`.
        guard = getattr(args, "guard", None)
        return [*(processors(args) or ()), Guard(guard)] if guard is not None else processors(args)

    server._make_logits_processors = with_guard
    saves = own.prompt_folder is not None
    own_handler = handler(telling(owned(keyed(server.APIHandler))), saves_prompts=saves)
    server._run_http_server = functools.partial(server._run_http_server, handler_class=own_handler)
    server.ResponseGenerator = generator(server, own.context_window, saves_prompts=saves)
    server.LRUPromptCache = _beside("mlx_prompts.py").OwnedPromptCache
    if saves:
        os.umask(0o077)
        _save_prompts(server, own, rest)
        # mlx_lm ends in order on Ctrl-C alone.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    server.main()


def _save_prompts(server: Any, own: argparse.Namespace, rest: list[str]) -> None:
    """Replaces mlx_lm's prompt cache by one with files."""
    keys, prompts = _beside("../prompts/key.py"), _beside("mlx_prompts.py")
    model = Path(rest[rest.index("--model") + 1])
    folders = [
        Path(rest[rest.index(name) + 1]) for name in ("--model", "--adapter-path", "--draft-model") if name in rest
    ]
    files = [path for folder in folders for path in sorted(folder.iterdir()) if path.is_file()]
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

"""Encodes a chat answer as Ollama's lines, for `/api/chat` or `/api/generate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from gateway.errors import GatewayError, ProviderInvalidResponse
from gateway.wire.chat import decode
from gateway.wire.pieces import CallArguments, CallStart, End, Piece, ReasoningPiece, TextPiece, UsagePiece, Warned

Line = dict[str, Any]


def error_object(error: GatewayError) -> Line:
    return {"error": error.message}


class LineEncoder:
    """Turns pieces into lines: `opening`, then `feed` for each batch, then `finish` or `fail`. Each call gets one line.

    began, now: seconds since 1970; `total_duration` is their difference. The durations of prompt and completion come
    from the engine; if it doesn't report them, a stream's first piece divides them, and a whole answer omits them.
    tier: the service tier that the last line names, asked for then; None names none. top: how many likely tokens a
    token's `logprobs` show; None: no `logprobs`. warnings: what the last line says in its `ctxgate` field, before the
    warnings of the answer itself.
    """

    def __init__(
        self,
        model: str,
        began: float,
        now: Callable[[], float],
        *,
        generate: bool = False,
        tier: Callable[[], str | None] = lambda: None,
        top: int | None = None,
        warnings: Sequence[dict[str, str]] = (),
    ) -> None:
        self._tier = tier
        self._top = top
        self._warnings = [*warnings]
        self._model = model
        self._began = began
        self._first = 0.0
        self._now = now
        self._generate = generate
        self._call: CallStart | None = None
        self._arguments: list[str] = []
        self._bare: set[int] = set()
        """Calls that ended without arguments. The end of the chat stream repeats them with `{}`."""
        self._calls = 0
        self._end = End("stop")
        self._usage = UsagePiece()

    def opening(self) -> list[Line]:
        return []

    def feed(self, pieces: Iterable[Piece]) -> list[Line]:
        """Raises ProviderInvalidResponse for calls that Ollama's format can't express."""
        self._first = self._first or self._now()
        lines: list[Line] = []
        for piece in pieces:
            match piece:
                case TextPiece() if piece.text or (piece.logprobs and self._top is not None):
                    lines += [*self._finish_call(), self._line(piece.text, **self._logprobs(piece))]
                case ReasoningPiece():
                    lines += [*self._finish_call(), self._line("", thinking=piece.text)]
                case CallStart():
                    lines += self._finish_call()
                    self._call = piece
                case CallArguments():
                    if self._call is None or self._call.index != piece.index:
                        if piece.index in self._bare and piece.json == "{}":
                            continue
                        raise ProviderInvalidResponse(
                            f"the engine sent arguments for call {piece.index}, which has ended"
                        )
                    self._arguments.append(piece.json)
                case End():
                    self._end = piece
                case UsagePiece():
                    self._usage = piece
                case Warned():
                    self._warnings += piece.warnings
        return lines

    def finish(self) -> list[Line]:
        lines = self._finish_call()
        now = self._now()
        last: Line = {
            **self._line(""),
            "done": True,
            "done_reason": "length" if self._end.reason == "length" else "stop",
            "total_duration": _ns(now - self._began),
            "load_duration": 0,
            "prompt_eval_count": self._usage.prompt,
            "prompt_eval_duration": _ns(self._usage.prompt_seconds or max(0.0, (self._first or now) - self._began)),
            "eval_count": self._usage.completion,
            "eval_duration": _ns(self._usage.completion_seconds or max(0.0, now - (self._first or now))),
        }
        if (tier := self._tier()) is not None:
            last["service_tier"] = tier
        if self._warnings:
            last["ctxgate"] = {"warnings": self._warnings}
        return [*lines, last]

    def fail(self, error: GatewayError) -> list[Line]:
        return [error_object(error)]

    def whole(self, lines: list[Line]) -> Line:
        """Joins the lines of an answer into one."""
        *before, last = lines
        if self._usage.completion_seconds is None:
            del last["prompt_eval_duration"], last["eval_duration"]
        if logprobs := [one for line in before for one in line.get("logprobs", ())]:
            last["logprobs"] = logprobs
        if self._generate:
            last["response"] = "".join(line["response"] for line in before)
            if thinking := "".join(line.get("thinking", "") for line in before):
                last["thinking"] = thinking
            return last
        message = last["message"]
        message["content"] = "".join(line["message"]["content"] for line in before)
        if thinking := "".join(line["message"].get("thinking", "") for line in before):
            message["thinking"] = thinking
        if calls := [call for line in before for call in line["message"].get("tool_calls", ())]:
            message["tool_calls"] = calls
        return last

    def loaded(self, reason: Literal["load", "unload"]) -> Line:
        """The answer to a request that only loads the model, or unloads it."""
        return {**self._line(""), "done": True, "done_reason": reason}

    def _finish_call(self) -> list[Line]:
        call, self._call = self._call, None
        if call is None:
            return []
        text, self._arguments = "".join(self._arguments), []
        if not text:
            self._bare.add(call.index)
        try:
            arguments = decode(text) if text else {}
        except (msgspec.DecodeError, RecursionError) as error:
            if self._end.reason == "length":
                return []  # Ollama's format can't express a cut call
            raise ProviderInvalidResponse(
                f"the model wrote tool call arguments that are not valid JSON: {error}"
            ) from error
        function = {"index": self._calls, "name": call.name, "arguments": arguments}
        self._calls += 1
        return [self._line("", tool_calls=[{"id": call.id, "function": function}])]

    def _logprobs(self, piece: TextPiece) -> Line:
        """The field `logprobs` of a line, as Ollama writes it; {} if there are none, or none were asked for."""
        if self._top is None or not piece.logprobs:
            return {}
        return {"logprobs": [_token(entry, self._top) for entry in piece.logprobs if isinstance(entry, dict)]}

    def _line(self, text: str, *, logprobs: Sequence[Line] = (), **more: Any) -> Line:
        at = datetime.fromtimestamp(self._now(), UTC).isoformat().replace("+00:00", "Z")
        head = {"model": self._model, "created_at": at}
        tail = {"done": False, **({"logprobs": logprobs} if logprobs else {})}
        if self._generate:
            return {**head, "response": text, **more, **tail}
        return {**head, "message": {"role": "assistant", "content": text, **more}, **tail}


def _token(entry: Line, top: int) -> Line:
    """One token of OpenAI's `logprobs.content`. top: how many of the likeliest in its place to show."""
    token: Line = {name: entry[name] for name in ("token", "logprob", "bytes") if name in entry}
    likeliest = entry.get("top_logprobs")
    if not top or not isinstance(likeliest, list):
        return token
    return {**token, "top_logprobs": [_token(one, 0) for one in likeliest[:top] if isinstance(one, dict)]}


def _ns(seconds: float) -> int:
    return max(0, int(seconds * 1e9))

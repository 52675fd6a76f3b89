"""Conversations with the gateways of a cluster, and which engine answered each of their turns."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from msgspec import Raw
from pydantic import SecretStr

from gateway.config import Config, Model
from gateway.features.cluster.backend import ClusterBackend, Shared
from gateway.features.cluster.tables import CHANNEL
from gateway.features.cluster.values import Load, decode
from tests.cluster.nodes import Gateway, until

MAX_MESSAGES = 80
BEGINS_WITH = 80
"""Sentences, about 1,100 tokens in all: what an engine with an earlier turn may read anew instead of restoring it, a
block of 80 tokens, is less than a tenth."""
PAUSE_SECONDS = 2.0
"""Between an answer and the next message, shorter than people's. Without it eight conversations on two processors would
wait for each other, whether a node dies or not."""


class Whereabouts:
    """Hears what gateways tell each other: the engine that read each prompt."""

    def __init__(self, store: str) -> None:
        self._connection = psycopg.connect(store, autocommit=True)
        self._connection.execute(f"LISTEN {CHANNEL}")
        row = self._connection.execute("SELECT value FROM cluster_keys WHERE name = 'engines'").fetchone()
        assert row is not None
        model = Model(name="chat", runtime="openai")
        config = Config(source=Path("config.yaml"), active_model="chat", models={"chat": model})
        shared = Shared(lambda: config, lambda urgent: None)
        shared.key = SecretStr(row[0])
        self._backend = ClusterBackend(model, shared)
        self._at: dict[int, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hear)
        self._thread.start()

    def engine(self, messages: list[dict[str, str]]) -> str | None:
        """Which one read them last; None if no gateway has told yet."""
        prefixes = self._backend.prefixes({"messages": Raw(json.dumps(messages).encode())})
        return self._at.get(prefixes[-1])

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._connection.close()

    def _hear(self) -> None:
        while not self._over.is_set():
            for notification in self._connection.notifies(timeout=0.2):
                message = decode(notification.payload)
                if isinstance(message, Load):
                    self._at.update((prompt, engine) for engine, read in message.read.items() for prompt in read)


@dataclass
class Answer:
    """sent, came: by time.monotonic. told: the request's messages. round: counts how often the talk began anew."""

    sent: float
    came: float
    told: list[dict[str, str]]
    round: int
    usage: dict[str, Any]

    @property
    def cached(self) -> float:
        """The share of its prompt."""
        return float(self.usage["prompt_tokens_details"]["cached_tokens"] / self.usage["prompt_tokens"])


@dataclass
class Moved:
    """A conversation whose node died. engine: who answered its next turn, after so many seconds."""

    engine: str
    seconds: float
    cached: float


@dataclass
class Talk:
    """A conversation that goes on until `end`, its turns at the gateways in turn."""

    who: int
    gateways: list[Gateway]
    answers: list[Answer] = field(default_factory=list)
    failed: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def engine_at(self, when: float, where: Whereabouts) -> str | None:
        """Who gave the last answer before."""
        before = [answer for answer in self.answers if answer.came < when]
        return until(lambda: where.engine(before[-1].told), "its engine is told") if before else None

    def moved(self, when: float, dead: Iterable[str], where: Whereabouts) -> Moved | None:
        """Its first answer by an engine that lives, after the `dead` one that it had until then; None before that came,
        and if the next turn began anew."""
        round = next(answer.round for answer in reversed(self.answers) if answer.came < when)
        for answer in [*self.answers]:
            if answer.came > when:
                engine = until(lambda: where.engine(answer.told), "its engine is told")  # noqa: B023
                if engine not in dead:
                    return Moved(engine, answer.came - when, answer.cached) if answer.round == round else None
        return None

    def answered_by(self, when: float, dead: Iterable[str], where: Whereabouts) -> bool:
        """Whether an engine that lives has answered since."""
        later = [answer for answer in [*self.answers] if answer.came > when]
        return any((engine := where.engine(answer.told)) is not None and engine not in dead for answer in later)

    def _run(self) -> None:
        for round in itertools.count():
            messages = [
                {"role": "user", "content": f"I am {self.who}.{round}; remember what I told you. " * BEGINS_WITH}
            ]
            # Nobody's conversations all begin anew at the same time.
            maximum = MAX_MESSAGES if round else MAX_MESSAGES * (self.who % 8 + 1) // 8
            while len(messages) < maximum:
                if self._over.is_set():
                    return
                sent = time.monotonic()
                answer = self.gateways[(self.who + len(messages) // 2) % len(self.gateways)].chat(messages)
                if not answer or "choices" not in answer:
                    self.failed.append(answer)
                    continue
                self.answers.append(Answer(sent, time.monotonic(), [*messages], round, answer["usage"]))
                messages += [answer["choices"][0]["message"], {"role": "user", "content": "Go on."}]
                self._over.wait(PAUSE_SECONDS)

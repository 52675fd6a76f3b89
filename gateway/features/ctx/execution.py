"""One run: asks the model and gives the canonical events of the answer. Nothing else."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from gateway.config import ConfigError
from gateway.config.problems import BadValue
from gateway.config.secret import credential
from gateway.config.values import Model
from gateway.errors import GatewayError, InternalError
from gateway.features.ctx import drivers
from gateway.features.ctx.availability import missing_credential
from gateway.features.ctx.drivers.base import Answering, Ask, NotOffered
from gateway.features.ctx.errors import NoDriver, NotConfigured, NotFound, code
from gateway.features.ctx.events import Done, Error, Event, Start, Status
from gateway.features.ctx.objects import Triple
from gateway.features.ctx.projection import projection
from gateway.features.ctx.prompt import Prompt
from gateway.features.ctx.settings import UseCase
from gateway.features.ctx.tree import Control, read_control
from gateway.services import Services

if TYPE_CHECKING:
    from gateway.features.media.uploads import Upload

log = logging.getLogger("ctxgate")

MAX_ANSWER = 1024 * 1024 - 4096
"""Most bytes of an answer's texts as JSON, so that its message fits into one frame."""


Ended = Callable[[Triple, str | None, str, Status], None]
"""Called at the end of each run with its object, session (or None), id and outcome."""


async def until(
    stop: asyncio.Event, events: AsyncGenerator[list[Event], None], last: Callable[[], list[Event]]
) -> AsyncGenerator[list[Event], None]:
    """Yields the batches of `events` until `stop` is set, then `last()`. Always closes `events`.

    Ends after a batch that ends with `done`.
    """
    stopping = asyncio.ensure_future(stop.wait())
    coming: asyncio.Future[list[Event] | None] | None = None
    try:
        while not stop.is_set():
            coming = asyncio.ensure_future(anext(events, None))
            await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                break
            batch = coming.result()
            if batch is None:
                return
            yield batch
            if isinstance(batch[-1], Done):
                return
        if coming is not None and not coming.done():
            # Cancel the engine's work before the client gets to know that the run has ended.
            coming.cancel()
            await asyncio.wait({coming})
        yield last()
    finally:
        stopping.cancel()
        if coming is not None and not coming.done():
            coming.cancel()
            await asyncio.wait({coming})
        await events.aclose()


@dataclass(frozen=True, slots=True)
class Execution:
    """One question to an object. triple: the object. use: selects the drivers of its route.

    limit: the most bytes of the answer's texts, as JSON. upload: the file of the input; whoever made it closes it.
    """

    services: Services
    triple: Triple
    use: UseCase
    run: str
    limit: int = MAX_ANSWER
    upload: Upload | None = None

    async def events(
        self, asked: Prompt | Mapping[str, Any], *, started: bool = False
    ) -> AsyncGenerator[list[Event], None]:
        """Yields `start`, unless `started`, the events of the answer, and `done`; a failure as `error` before `done`.

        asked: an input, or the fields of a chat request. A failure before the model is asked has no `start`. Raises
        nothing but CancelledError.
        """
        answering: Answering | None = None
        try:
            control = await asyncio.to_thread(read_control, self.triple)
            ask = await self._ask(control, asked)
            routed = control.routes.drivers(self.use)
            if not routed:
                raise NoDriver(f"{self.triple.name}: its driver file names none for {self.use}, and no default")
            if all(drivers.load(name) is None for name in routed):
                known = ", ".join(drivers.DRIVERS)
                raise NoDriver(f"{self.triple.name}: unknown driver {', '.join(routed)}; there are {known}")
            if not started:
                yield [Start(run=self.run, model=self.triple.name.name)]
            answering = await self._open(routed, ask)
            while events := await answering.events():
                yield events
            answering.close()
            yield [Done(run=self.run, status="ok", reason="length" if answering.cut else UNSET)]
        except GatewayError as error:
            yield self._failed(error)
        except Exception:
            log.exception("%s failed", self.triple.name)
            yield self._failed(InternalError("ctxgate failed; see its log"))
        finally:
            if answering is not None:
                answering.close()

    async def _ask(self, control: Control, asked: Prompt | Mapping[str, Any]) -> Ask:
        model = self._model(control)
        if (missing := missing_credential(self.services.gateway.config, model)) is not None:
            model = await self._configured(control, missing)
        fields = asked.fields(model.role if model is not None else "chat") if isinstance(asked, Prompt) else asked
        return Ask(self.run, model, {**control.defaults, **fields}, self.limit, self.upload)

    def _model(self, control: Control) -> Model | None:
        """The model of config.yaml that the object stands for; None for the built-in echo. Raises NotFound."""
        config = self.services.gateway.config
        objects = projection(config).objects
        if control.id not in objects:
            raise NotFound(f"{self.triple.name}: its id {control.id!r} is none of {', '.join(objects)}")
        of = objects[control.id]
        return config.models[of] if of is not None else None

    async def _configured(self, control: Control, name: str) -> Model | None:
        """The model, once its key is in the keychain: a person may have put it there since the gateway started.

        Raises NotConfigured.
        """
        reloader = self.services.reloader
        try:
            if reloader is not None and await asyncio.to_thread(credential, name, os.environ) is not None:
                await reloader.reload()
        except (BadValue, ConfigError) as error:
            log.warning("%s: its key can't be read: %s", self.triple.name, error)
        model = self._model(control)
        if missing_credential(self.services.gateway.config, model) is None:
            return model
        variable = f"{name.upper().replace('-', '_')}_API_KEY"
        raise NotConfigured(
            f"{self.triple.name} is not configured: set {variable}, or put the key into the keychain: "
            f"keyring set cortexfs:{name} default",
            code="not_configured",
        )

    async def _open(self, routed: tuple[str, ...], ask: Ask) -> Answering:
        refused: list[str] = []
        for name in routed:
            driver = drivers.load(name)
            if driver is None:
                refused.append(f"{name} is unknown")
                continue
            try:
                return await driver.open(self.services.gateway, ask)
            except NotOffered as reason:
                refused.append(f"{name}: {reason}")
        raise NoDriver(f"{self.triple.name}: {'; '.join(refused)}")

    def _failed(self, error: GatewayError) -> list[Event]:
        return [Error(run=self.run, code=code(error), message=error.message), Done(run=self.run, status="error")]

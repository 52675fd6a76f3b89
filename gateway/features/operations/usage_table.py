"""Usage of models: sums for each day, key, model and client, to which every gateway of the database adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import asdict
from sqlalchemy import Connection, text

from gateway.errors import ProviderInvalidRequest

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.observe.request_log import Total, UsageKey
    from gateway.store import Store

By = Literal["day", "key", "model", "client"]
BY: tuple[By, ...] = ("day", "key", "model", "client")
SUMS = (
    *("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens", "seconds"),
    *("sound_seconds", "characters", "pictures"),
)
FRACTIONS = ("seconds", "sound_seconds")
DAY_SECONDS = 86400


async def add_totals(store: Store, totals: Mapping[UsageKey, Total]) -> None:
    """Adds to the sums, all or nothing."""
    await add(store, [dict(zip(BY, party, strict=True)) | asdict(total) for party, total in totals.items()])


async def add(store: Store, rows: Iterable[Mapping[str, Any]]) -> None:
    """The same. rows: with the columns BY and SUMS."""
    values = [dict(row) for row in rows]
    await store.write(lambda connection: connection.execute(_ADD, values) and None)


async def report(store: Store, by: By, since: str, until: str = "9999") -> list[dict[str, Any]]:
    """The sums of each day, key, model or client, in its order. since, until: days, as 2026-11-23."""
    statement, days = _REPORTS[by], {"since": since, "until": until}

    def work(connection: Connection) -> list[dict[str, Any]]:
        return [dict(row) for row in connection.execute(statement, days).mappings()]

    rows = await store.read(work)
    # PostgreSQL sums big integers as decimals.
    return [{name: _plain(name, value) for name, value in row.items()} for row in rows]


async def tokens_today(store: Store, key: str) -> int:
    """Prompt and completion tokens of one key today, in UTC."""
    return await tokens(store, day_of(store.clock.now()), key)


async def tokens(store: Store, day: str, key: str) -> int:
    """The same on one day."""
    asked = {"day": day, "key": key}
    return await store.read(lambda connection: int(connection.execute(_TOKENS, asked).scalar_one()))


async def prune(store: Store, config: Config, now: float) -> int:
    """Removes days older than `log.usage_days`; returns the number of rows."""
    oldest = {"oldest": day_of(now - config.log.usage_days * DAY_SECONDS)}
    return await store.write(lambda connection: connection.execute(_PRUNE, oldest).rowcount)


def day_of(at: float) -> str:
    """The day in UTC, as 2026-11-23. at: seconds since 1970."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(max(0.0, at), UTC).date().isoformat()


def first_day(since: str, now: float) -> str:
    """since: a day (2026-11-23), or a number of days up to today (7d). Raises ProviderInvalidRequest."""
    from datetime import date

    if since.endswith("d") and since[:-1].isascii() and since[:-1].isdigit():
        return day_of(now - max(0, int(since[:-1][:6]) - 1) * DAY_SECONDS)
    try:
        return date.fromisoformat(since).isoformat()
    except ValueError:
        message = f"since: {since[:40]!r} is not a day: write 2026-11-23, or 7d for the last seven"
        raise ProviderInvalidRequest(message, param="since") from None


def _plain(name: str, value: Any) -> Any:
    return value if name in BY else round(float(value), 3) if name in FRACTIONS else int(value)


_COLUMNS = (*BY, *SUMS)
_ADD = text(
    f"INSERT INTO usage ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) "  # noqa: S608 - names of ours
    f"ON CONFLICT ({', '.join(BY)}) DO UPDATE SET "
    + ", ".join(f"{name} = usage.{name} + excluded.{name}" for name in SUMS)
)
_REPORTS = {
    by: text(
        f"SELECT {by}, {', '.join(f'sum({name}) AS {name}' for name in SUMS)} FROM usage "  # noqa: S608 - names of ours
        f"WHERE day >= :since AND day <= :until GROUP BY {by} ORDER BY {by}"
    )
    for by in BY
}
_TOKENS = text("SELECT coalesce(sum(prompt_tokens + completion_tokens), 0) FROM usage WHERE day = :day AND key = :key")
_PRUNE = text("DELETE FROM usage WHERE day < :oldest")

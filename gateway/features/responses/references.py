"""References to stored items, which clients send in place of items that they got from the gateway."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gateway.errors import ProviderInvalidRequest
from gateway.features.responses.stored import responses
from gateway.features.responses.wire.conversations import is_id
from gateway.features.responses.wire.request import REFERENCE, Item, is_reference, referred_id
from gateway.server.http import Request


async def resolved(
    request: Request, items: list[Item], before: Iterable[Item] = (), held: Sequence[Item] = (), field: str = "input"
) -> list[Item]:
    """The items, with what references name in their places. A model sees each once: what came before is left out.

    before: the conversation up to them. held: others that may be named, beside the stored ones. field: that the items
    are in. Where nothing is stored, a name of nothing stays a reference, which no model sees.
    Raises ProviderInvalidRequest, for a name of nothing with 404.
    """
    named = {place: referred_id(item, f"{field}[{place}]") for place, item in enumerate(items) if is_reference(item)}
    if not named:
        return items
    seen = {item.get("id") for item in before}
    found: dict[Any, Item] = {item.get("id"): item for item in held}
    if missing := {*named.values()} - seen - {*found}:
        if request.gateway.config.server.responses_days:
            found |= await (await responses(request)).named({id for id in missing if is_id(id)}, request.principal)
        else:
            found |= {id: {"type": REFERENCE, "id": id} for id in missing}
    made: list[Item] = []
    for place, item in enumerate(items):
        id = named.get(place)
        if id is None:
            made.append(item)
        elif id not in seen and id not in found:
            raise _unknown(f"{field}[{place}]", id)
        elif id not in seen:
            made.append(found[id])
        if isinstance(item.get("id"), str):
            seen.add(item["id"])
    return made


def _unknown(place: str, id: str) -> ProviderInvalidRequest:
    message = f"{place}: there is no item {id!r}: it was never stored, or it has expired; send the item itself"
    return ProviderInvalidRequest(message, code="item_not_found", param=place, status=404)

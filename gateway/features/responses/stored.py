"""The stores behind a request, which open on first use, and pages of stored items."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.errors import ProviderInvalidRequest
from gateway.server.http import Request

if TYPE_CHECKING:
    from gateway.features.responses.conversation_store import ConversationStore
    from gateway.features.responses.item_rows import Paging
    from gateway.features.responses.response_store import ResponseStore

PAGE, LARGEST_PAGE = 20, 100


async def responses(request: Request) -> ResponseStore:
    from gateway.features.responses.response_store import ResponseStore

    return ResponseStore(await request.services.store(), request.gateway.config.server.responses_max_bytes)


async def conversations(request: Request) -> ConversationStore:
    """Raises ProviderInvalidRequest if the gateway stores no responses."""
    if not request.gateway.config.server.responses_days:
        message = "conversation: this gateway stores none (server.responses_days: 0)"
        raise ProviderInvalidRequest(message, code="conversations_disabled", param="conversation")
    from gateway.features.responses.conversation_store import ConversationStore

    return ConversationStore(await request.services.store(), await responses(request))


def paging(request: Request) -> Paging:
    """What the query asks for. Raises ProviderInvalidRequest."""
    from gateway.features.responses.item_rows import Paging

    limit = max(1, request.number("limit", PAGE, LARGEST_PAGE))
    return Paging(limit, request.query_params.get("after") or None, request.query_params.get("order") == "asc")

"""Has models that read images describe them, for models that read text alone."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from hashlib import sha256

from gateway.core.gateway import RouteOf
from gateway.errors import GatewayError
from gateway.wire.chat import ChatRequest, encode
from gateway.wire.conversation import image_part, text_part
from gateway.wire.images import LEFT_OUT, described
from gateway.wire.pieces import TextPiece, pieces

PROMPT = (
    "Describe this image for someone who can't see it and goes on working with your words alone. Quote all text in it"
    " word for word, then say what else there is and where. No introduction, no opinion."
)
MAX_TOKENS = 600
"""Tokens of a description."""
MAX_CHARACTERS = 4000
MAX_DESCRIBED = 8
"""New images that one request has described, its last ones; the others are left out."""
MAX_KEPT = 256
"""Descriptions that are remembered: agents send their images again with every turn. Of more, whoever has most loses the
oldest."""


class Describer:
    """Has models that see describe images, and remembers the last descriptions."""

    def __init__(self, route_of: RouteOf) -> None:
        """route_of: by the model's name; called anew for each image, since a reload may replace or end a route."""
        self._route_of = route_of
        self._kept: OrderedDict[tuple[str, str, bytes], str] = OrderedDict()
        """By model, the user for whom it was described, and the image: how soon an answer comes tells nothing of what
        others have sent."""

    async def describe(self, model: str, images: Sequence[str], request: ChatRequest) -> dict[str, str]:
        """See `gateway.core.images.Describes`. Begins with the last images, since it doesn't describe all of many."""
        texts: dict[str, str] = {}
        left = MAX_DESCRIBED
        before = request.serving.describe
        try:
            for url in reversed(images):
                key = model, request.caller.owner, sha256(url.encode()).digest()
                if key not in self._kept and left:
                    left -= 1
                    request.serving.tell(lambda: f"describing model={model}")
                    if text := await self._ask(model, url, request):
                        self._kept[key] = text
                if (text := self._kept.get(key, "")) != "":
                    self._kept.move_to_end(key)
                    texts[url] = described(text, model)
        finally:
            request.serving.tell(before)
        while len(self._kept) > MAX_KEPT:
            (owner, _), *_ = Counter(owner for _, owner, _ in self._kept).most_common(1)
            del self._kept[next(key for key in self._kept if key[1] == owner)]
        return texts

    async def _ask(self, model: str, url: str, of: ChatRequest) -> str:
        """The model's description; "" if it gives none."""
        content = [text_part(PROMPT), image_part(url)]
        body = {"messages": [{"role": "user", "content": content}], "model": model, "max_tokens": MAX_TOKENS}
        request = ChatRequest.parse(encode(body), of.api, of.caller)
        request.serving.settle(of.serving.tier)
        if (route := self._route_of(model)) is None:
            return ""
        try:
            with await route.open_in_turn(request) as run:
                texts = [piece for piece in pieces(await run.whole()) if isinstance(piece, TextPiece)]
                answer = [piece.text for piece in texts if not piece.refused]
                seen = LEFT_OUT not in run.answer.report.healed
        except GatewayError:
            return ""
        return "".join(answer).strip()[:MAX_CHARACTERS] if seen else ""

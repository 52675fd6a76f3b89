"""API keys: how much each may use, and `ctxgate keys`. `gateway/server/keys.py` knows whose a key is."""

from __future__ import annotations

from gateway.feature import Feature

FEATURE = Feature(
    name="keys",
    commands={"keys": ("gateway.features.keys.commands.keys:keys", "Make, list and revoke the keys of callers.")},
    offers={"limiter": "gateway.features.keys.limiter:limiter"},
)

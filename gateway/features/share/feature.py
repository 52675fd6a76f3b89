"""Saved prompts in storage that several machines reach, as set by `prompts.share`."""

from __future__ import annotations

from gateway.feature import Feature

FEATURE = Feature(name="share", offers={"share": "gateway.features.share.share:Share"})

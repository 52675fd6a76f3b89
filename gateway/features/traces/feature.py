"""Requests as spans of OpenTelemetry, as set by `log.traces`."""

from __future__ import annotations

from gateway.feature import Feature

FEATURE = Feature(name="traces", offers={"traces": "gateway.features.traces.route:Tracing"})

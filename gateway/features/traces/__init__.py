"""Requests as spans of OpenTelemetry."""

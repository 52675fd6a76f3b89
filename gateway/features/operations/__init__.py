"""Endpoints for the person who runs the gateway."""

"""Engines that the gateway starts itself: launch recipes, processes that leave no orphans, one state machine each."""

from gateway.engines.engine import Engine, State, for_model

__all__ = ["Engine", "State", "for_model"]

"""Engines that the gateway starts itself: their processes, their states and the memory that they share."""

from gateway.engines.engine import Engine, for_model
from gateway.engines.residency import Residency
from gateway.engines.snapshot import EngineSnapshot
from gateway.engines.states import State

__all__ = ["Engine", "EngineSnapshot", "Residency", "State", "for_model"]

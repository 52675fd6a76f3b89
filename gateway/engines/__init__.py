"""Engines that the gateway starts itself: launch recipes, processes that leave no orphans, one state machine each."""

from gateway.engines.engine import Engine, for_model
from gateway.engines.residency import Residency
from gateway.engines.states import State
from gateway.engines.status import Progress, Status

__all__ = ["Engine", "Progress", "Residency", "State", "Status", "for_model"]

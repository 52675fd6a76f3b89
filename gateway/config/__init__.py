"""`_models/config.yaml`, read once and passed down as a value."""

from gateway.config.loader import find, load
from gateway.config.problems import ConfigError, Problem
from gateway.config.values import (
    Config,
    Engines,
    Model,
    Prompts,
    PullSource,
    Residence,
    Role,
    Rooms,
    RoomTools,
    Rope,
    Runtime,
    Server,
)

__all__ = [
    "Config",
    "ConfigError",
    "Engines",
    "Model",
    "Problem",
    "Prompts",
    "PullSource",
    "Residence",
    "Role",
    "RoomTools",
    "Rooms",
    "Rope",
    "Runtime",
    "Server",
    "find",
    "load",
]

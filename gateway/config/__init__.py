"""`_models/config.yaml`, read once and passed down as a value."""

from gateway.config.loader import find, load
from gateway.config.names import Role
from gateway.config.problems import ConfigError, Problem
from gateway.config.values import (
    Adapter,
    Config,
    Draft,
    Engines,
    Model,
    Prompts,
    PullSource,
    Residence,
    Rope,
    Runtime,
    Server,
)

__all__ = [
    "Adapter",
    "Config",
    "ConfigError",
    "Draft",
    "Engines",
    "Model",
    "Problem",
    "Prompts",
    "PullSource",
    "Residence",
    "Role",
    "Rope",
    "Runtime",
    "Server",
    "find",
    "load",
]

"""`_models/config.yaml`, read once and passed down as a value."""

from gateway.config.loader import find, load
from gateway.config.problems import ConfigError, Problem
from gateway.config.values import Config, Model, PullSource, Runtime, Server

__all__ = ["Config", "ConfigError", "Model", "Problem", "PullSource", "Runtime", "Server", "find", "load"]

from gateway.config import Config
from gateway.rooms.tools.base import Tool


def tools(config: Config) -> list[Tool]:
    return []

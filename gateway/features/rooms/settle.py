"""What the section `rooms` of config.yaml says together with the rest of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gateway.config.names import DEFAULT
from gateway.config.values import Config
from gateway.features.agents.settings import Rooms

if TYPE_CHECKING:
    from gateway.config.source import Document, KeyPath


def settle(document: Document, config: Config) -> Config:
    """See `gateway.feature.Feature.settle`."""
    from gateway.config.explain import did_you_mean
    from gateway.features.rooms.templates import rented

    rooms, models = config.section(Rooms), config.models
    if (summary := rooms.tools.summary_model) not in (None, DEFAULT, *models):
        document.problem(
            ("rooms", "tools", "summary_model"),
            f"rooms.tools.summary_model: there is no model {summary}",
            f"{did_you_mean(str(summary), models)} models: {', '.join(models)}".strip(),
        )
    if "local" in rooms.providers:
        at: KeyPath = ("rooms", "providers", "local")
        document.problem(at, "rooms.providers: local is the gateway itself", "choose another name", key=True)
    state = config.state_dir.resolve()
    for name, mount in rooms.mounts.items():
        if mount.path.is_relative_to(state) or state.is_relative_to(mount.path):
            what = f"rooms.mounts.{name}.path: it contains the gateway's own state, with its keys"
            document.problem(("rooms", "mounts", name, "path"), what, "mount another folder, or move state_dir")
    for name, template in rooms.templates.items():
        try:
            rented(name, template)
        except msgspec.ValidationError as error:
            what = f"rooms.templates.{name}: a room can't be made of it: {error}"
            document.problem(("rooms", "templates", name), what, "correct it", key=True)
        for key, named, choices in (
            ("model", () if template.provider else (template.model,), models),
            ("provider", (template.provider,), rooms.providers),
            ("mounts", template.mounts, rooms.mounts),
        ):
            for value in filter(None, named):
                if value not in (DEFAULT, "local", *choices):
                    what = f"rooms.templates.{name}.{key}: there is no {key.rstrip('s')} {value}"
                    cure = f"{did_you_mean(value, choices)} there are: {', '.join(choices) or 'none'}"
                    document.problem(("rooms", "templates", name, key), what, cure.strip())
    return config

"""What the cell `structured` asks for; apart from cells.py, since not every client brings pydantic."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class Weather(BaseModel):
    """Every answer that conforms is short, whatever the model."""

    city: Literal["Paris", "Oslo"]
    unit: Literal["celsius", "fahrenheit"]


JSON_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "weather",
        "strict": True,
        "schema": {**Weather.model_json_schema(), "additionalProperties": False},
    },
}

"""A feature of another package: greets people, as `greeting:` in config.yaml says."""

from gateway.feature import Feature, Routes

FEATURE = Feature(
    name="greeting",
    sections={"greeting": "ctxgate_greeting.parts:Greeting"},
    routes=(Routes({"/hello/{name}": {"GET": "ctxgate_greeting.parts:hello"}}),),
    commands={"greet": ("ctxgate_greeting.parts:greet", "Greet somebody.")},
)

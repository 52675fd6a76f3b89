"""`python -m gateway.cli.model_test`: what `scripts/model-test` runs. A feature has it."""

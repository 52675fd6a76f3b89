"""The clients that the gateway knows."""

"""Several machines that share their engines. Ray places the engines, PostgreSQL holds the gateways' shared state.

Imported only where config.yaml has `cluster:`. Requests go straight from a gateway to an engine, never through Ray.
"""

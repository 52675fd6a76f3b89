"""Several machines that run one set of engines. Ray places the engines, PostgreSQL holds what the gateways share.

Imported only where config.yaml has `cluster:`. Requests go straight from a gateway to an engine, never through Ray.
"""

"""The HTTP APIs: every path is in `routes`, the ASGI application is `entry`."""

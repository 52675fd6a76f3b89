"""The wire formats without I/O: call → request body, body → Response, and conversations both ways."""

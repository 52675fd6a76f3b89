"""The formats of requests and answers; pure."""

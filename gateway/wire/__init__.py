"""Formats without I/O: bytes in, values out, and back."""

"""Readers and writers of the wire formats, without I/O."""

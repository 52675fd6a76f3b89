"""Models as files: run one, talk to its socket, read its control files (model ABI, object ABI)."""

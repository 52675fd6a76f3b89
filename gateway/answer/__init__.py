"""What an engine's answer becomes before a client sees it. Pure: no I/O."""

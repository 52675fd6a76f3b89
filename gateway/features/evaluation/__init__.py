"""How well and how fast a model works: tests of its tool calls, settings of its engine, gates of a swap."""

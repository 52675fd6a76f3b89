"""Saved prompts: what an engine has read of a conversation, kept on disk beyond the end of its process.

`blocks`, `index`, `slots` and `key` decide and do no I/O; `folder` holds the files, `saved` the prompts of all engines,
`live` those of one running engine.
"""

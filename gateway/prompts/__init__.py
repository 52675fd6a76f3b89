"""Saved prompts: the prompts that an engine has read, kept on disk after its process has ended.

`blocks`, `index`, `slots` and `key` decide and do no I/O; `folder` holds the files, `saved` the prompts of all engines,
`live` those of one running engine.
"""

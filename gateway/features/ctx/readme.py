"""The README at the root of the tree."""

from __future__ import annotations


def readme() -> str:
    return """\
Models, agents and tools as files, made and served by ctxgate.

  model/PROVIDER/MODEL   execute it to ask the model; model/main is the active one
  agent/NAME             execute it to give the agent a task
  tool/NAME              execute it with JSON arguments

Beside an object X, X.d has its control files, and X.sock, if there is one, its conversations. Reading X describes it;
`X --help` says how to execute it.

  model/main "Why is the sky blue?"
  git diff | model/main "Write a commit message." -
  printf '%s\\n' '{"op":"send","id":"m1","input":"hello"}' | nc -U model/main.sock

`ctxgate ctx --help` lists commands for this tree, `ctxgate ctx doctor` checks it. docs/ctx.md of ctxgate has the rest.

bin/ has the program that runs objects, home/ users' own aliases and exported sessions, shared/ everybody's.
"""

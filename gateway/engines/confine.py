"""Takes rights from the process that calls it, for good: no new privileges, and on Linux only the files it is allowed.

`guard.py` loads this by path, on the standard library alone, and calls `confine` in the child that becomes the engine.
Landlock (Linux 5.13 and newer) needs no privileges; what it takes, neither the process nor its children get back. The
interface: https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Mapping, Sequence

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls, the same on every architecture that Python runs on."""
VERSION_FLAG, PATH_BENEATH = 1, 1
SET_NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
DEVICES = 1 << 6 | 1 << 11
"""To make character and block devices."""
FIRST = (1 << 13) - 1
"""All rights that the first version knows."""
LATER = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Version → the right that it adds: to link or rename into other folders, to truncate, to use `ioctl` on devices."""
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15
"""Rights that make sense for something that isn't a folder; the system refuses the others there."""
SIGNALS, SIGNALS_SINCE = 1 << 1, 6
"""Signals to processes outside, since version 6."""


class RulesetAttributes(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Of the system's Landlock; 0 where there is none."""
    if not sys.platform.startswith("linux"):
        return 0
    known: int = _libc().syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION_FLAG))
    return max(0, known)


def confine(allowed: Mapping[str, Sequence[str]]) -> None:
    """Gains no privileges any more, and has no access to files but this.

    allowed: folders and files by kind: `read`; `execute`: to run, and to read; `use`: devices and the like, to read and
    write as they are; `write`: everything but to run something there. What isn't there is skipped. Empty: takes no
    access. Does nothing where the system can't. Raises OSError if it could, but failed.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = _libc()
    _checked(libc.prctl(SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))))
    if not allowed or not (known := version()):
        return
    rights = FIRST | sum(right for since, right in LATER.items() if since <= known)
    attributes = RulesetAttributes(rights, 0, SIGNALS if known >= SIGNALS_SINCE else 0)
    size = ctypes.sizeof(attributes) if known >= SIGNALS_SINCE else 8
    rules = _checked(libc.syscall(CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0)))
    try:
        for kind, paths in allowed.items():
            for path in paths:
                _allow(libc, rules, path, of_kind(kind) & rights)
        _checked(libc.syscall(RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0)))
    finally:
        os.close(rules)


def of_kind(kind: str) -> int:
    """The rights of a kind of `confine`. Raises KeyError."""
    read = READ_FILE | READ_DIR
    use = read | WRITE_FILE | LATER[3] | LATER[5]
    everything = FIRST | sum(LATER.values())
    return {"read": read, "execute": EXECUTE | READ_FILE, "use": use, "write": everything & ~(EXECUTE | DEVICES)}[kind]


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        at = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(at).st_mode):
            rights &= OF_FILES
        rule = PathBeneath(rights, at)
        _checked(
            libc.syscall(
                ADD_RULE, ctypes.c_int(rules), ctypes.c_int(PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0)
            )
        )
    finally:
        os.close(at)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result

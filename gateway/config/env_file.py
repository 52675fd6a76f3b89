"""The environment file: values for `${NAME}` in config.yaml, for a service that no shell starts.

One `NAME=value` a line; `#` begins a comment line; quotes around a whole value are dropped. systemd's EnvironmentFile
and Docker's env_file read the same.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import MutableMapping
from pathlib import Path

from gateway.errors import ProviderInvalidRequest

TEMPLATE = """\
# Variables of the gateway, one NAME=value a line: the keys that ${NAME} in config.yaml stands for.
# Changes take effect when the gateway restarts. Keep this file to yourself: it must not be readable by others.
#CTXGATE_KEY=choose-one
#HF_TOKEN=
"""
MAX_BYTES = 1 << 20
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)", re.ASCII)


def load(file: Path, environ: MutableMapping[str, str]) -> None:
    """Sets the file's variables. A file that others can read or write is refused.

    Raises ProviderInvalidRequest with the line's number, but not its contents.
    """
    try:
        with file.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProviderInvalidRequest(f"{file}: {error.strerror}; correct --env-file") from None
    if mode & 0o077:
        raise ProviderInvalidRequest(f"{file}: others may read or write it (mode {mode:o}); run chmod 600 on it")
    if len(content) > MAX_BYTES:
        raise ProviderInvalidRequest(f"{file}: larger than {MAX_BYTES} bytes; correct --env-file")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ProviderInvalidRequest(f"{file}: not UTF-8; write it again") from None
    environ.update(parse(text, str(file)))


def parse(text: str, name: str) -> dict[str, str]:
    """Raises ProviderInvalidRequest for a line that isn't NAME=value; `name` says where."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        parts = _LINE.fullmatch(line)
        if parts is None or "\0" in line:
            raise ProviderInvalidRequest(f"{name}:{number}: not NAME=value; correct the line, or begin it with #")
        key, value = parts[1], parts[2]
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[key] = value
    return found

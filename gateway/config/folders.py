"""ctxgate's folders of the user, below $XDG_CONFIG_HOME, $XDG_STATE_HOME and $XDG_CACHE_HOME, on macOS too; and how a
file is written there."""

import os
from pathlib import Path

from platformdirs.unix import Unix

USER = Unix("ctxgate")


def whole(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Replaces the file, so that nobody sees half of it, and makes its folder. Raises OSError, and leaves no draft."""
    import tempfile  # takes longer than all else that a start imports from here

    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
        os.chmod(draft, mode)
        os.replace(draft, file)
    except BaseException:
        os.unlink(draft)
        raise

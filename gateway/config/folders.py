"""The user's folders of ctxgate: below $XDG_CONFIG_HOME, $XDG_STATE_HOME and $XDG_CACHE_HOME, on macOS too."""

from platformdirs.unix import Unix

USER = Unix("ctxgate")

"""launchd: an agent of the user, which runs while the user is logged in."""

from __future__ import annotations

import os
import plistlib
from pathlib import Path
from typing import ClassVar

from gateway.errors import ProviderInvalidRequest, ProviderUnavailable
from gateway.features.service.base import OPEN_FILES, STOP_SECONDS, Manager, ServicePlan, State, run

LABEL = "ctxgate.gateway"
THROTTLE_SECONDS = 10


class Launchd(Manager):
    """launchd hands sockets over only by a function of its own library, so the gateway opens them itself."""

    name: ClassVar[str] = "launchd"

    @property
    def _agent(self) -> Path:
        return self.home / "Library/LaunchAgents" / f"{LABEL}.plist"

    @property
    def _log(self) -> Path:
        return self.home / "Library/Logs/ctxgate.log"

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    @property
    def _name(self) -> str:
        return f"{self._domain}/{LABEL}"

    def files(self, plan: ServicePlan) -> dict[Path, bytes]:
        return {
            self._agent: plistlib.dumps(
                {
                    "Label": LABEL,
                    "ProgramArguments": [*plan.command],
                    "EnvironmentVariables": {**plan.environment},
                    "RunAtLoad": True,
                    # Not after it ended by itself.
                    "KeepAlive": {"SuccessfulExit": False},
                    "ThrottleInterval": THROTTLE_SECONDS,
                    "ExitTimeOut": STOP_SECONDS,
                    # Engines compute: launchd slows processes of other types down.
                    "ProcessType": "Interactive",
                    "SoftResourceLimits": {"NumberOfFiles": OPEN_FILES},
                    "Umask": 0o77,
                    "StandardErrorPath": str(self._log),
                    "StandardOutPath": "/dev/null",
                }
            )
        }

    def links(self) -> dict[Path, Path]:
        return {}

    def present(self) -> None:
        done = run(["launchctl", "print", self._domain], check=False)
        if done.returncode:
            raise ProviderUnavailable(
                f"launchd runs no agents of this user here ({done.stderr.strip()}): log in on the machine itself; "
                "`ctxgate service install --no-start` only writes the file"
            )

    def start(self) -> None:
        self.stop()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        run(["launchctl", "bootstrap", self._domain, str(self._agent)])

    def stop(self) -> None:
        run(["launchctl", "bootout", self._name], check=False)

    def forget(self) -> None:
        """It reads the file only to start it."""

    def state(self) -> State:
        if not self._agent.exists():
            return State(installed=False)
        done = run(["launchctl", "print", self._name], check=False)
        if done.returncode:
            return State(installed=True, text="not loaded", cure="ctxgate service install")
        found = dict(line.strip().split(" = ", 1) for line in done.stdout.splitlines() if " = " in line)
        running = found.get("state") == "running"
        code = found.get("last exit code", "")
        text = found.get("state", "unknown") + (f", last exit code {code}" if code and not running else "")
        pid = found.get("pid", "")
        cure = "" if running else "see `ctxgate service logs`, then `ctxgate service install` again"
        return State(installed=True, running=running, pid=int(pid) if pid.isdigit() else None, text=text, cure=cure)

    def logs(self, lines: int, follow: bool) -> list[str]:
        return ["tail", "-n", str(lines), *(("-F",) if follow else ()), str(self._log)]

    def linger(self, wanted: bool) -> bool:
        if wanted:
            raise ProviderInvalidRequest(
                "launchd ends a user's agents at logout; only a daemon in /Library/LaunchDaemons, which root installs, "
                "survives it: see docs/service.md"
            )
        return False

    def remove(self) -> list[Path]:
        self._log.unlink(missing_ok=True)
        return super().remove()

"""systemd's user manager: a service and the socket that starts it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from gateway.errors import ProviderUnavailable
from gateway.features.service.base import OPEN_FILES, STOP_SECONDS, Manager, ServicePlan, State, run

SERVICE, SOCKET = "ctxgate.service", "ctxgate.socket"
BACKLOG = 2048
WRONG_CONFIGURATION = 2
"""The exit code of a gateway for which a restart doesn't help."""
LINGER = "# `ctxgate service install --linger` let this user's services survive a logout.\n"

HARDENING = """\
# What a user's manager can deny a process. It can't take devices, kernel modules or capabilities away (a user has
# none to take), and devices must stay for GPUs.
NoNewPrivileges=yes
SystemCallFilter=@system-service
# With these, the gateway takes rights from its engines.
SystemCallFilter=landlock_create_ruleset landlock_add_rule landlock_restrict_self
SystemCallErrorNumber=EPERM
SystemCallArchitectures=native
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
KeyringMode=private
UMask=0077
"""
SANDBOX = """\
# Older managers leave these out by themselves; if one refuses to start the service (status 226/NAMESPACE):
# ctxgate service install --no-sandbox
ProtectSystem=strict
ProtectHome=read-only
ProtectControlGroups=yes
ProtectHostname=yes
ProtectProc=invisible
"""


class Systemd(Manager):
    name: ClassVar[str] = "systemd"

    @property
    def folder(self) -> Path:
        return Path(os.environ.get("XDG_CONFIG_HOME") or self.home / ".config") / "systemd/user"

    def files(self, plan: ServicePlan) -> dict[Path, bytes]:
        made = {self.folder / SERVICE: service(plan).encode()}
        if plan.listen:
            made[self.folder / SOCKET] = socket(plan).encode()
        return made

    def links(self) -> dict[Path, Path]:
        """As `systemctl enable` makes them, which needs a running manager for it."""
        wanted = {"default.target.wants": SERVICE, "sockets.target.wants": SOCKET}
        return {self.folder / target / unit: self.folder / unit for target, unit in wanted.items()}

    def present(self) -> None:
        done = run(["systemctl", "--user", "show-environment"], check=False)
        if done.returncode:
            raise ProviderUnavailable(
                f"systemd runs no services of this user here ({done.stderr.strip()}): log in as the user, not by su or "
                "sudo; `ctxgate service install --no-start` only writes the files"
            )

    def start(self) -> None:
        self.stop()
        run(["systemctl", "--user", "daemon-reload"])
        run(["systemctl", "--user", "reset-failed", SERVICE, SOCKET], check=False)
        run(["systemctl", "--user", "start", SOCKET])
        run(["systemctl", "--user", "start", SERVICE], check=False)  # its state says why it failed

    def stop(self) -> None:
        run(["systemctl", "--user", "stop", SOCKET, SERVICE], check=False)

    def forget(self) -> None:
        run(["systemctl", "--user", "daemon-reload"], check=False)
        run(["systemctl", "--user", "reset-failed", SERVICE, SOCKET], check=False)

    def state(self) -> State:
        installed = (self.folder / SERVICE).exists()
        if not installed:
            return State(installed=False, survives_logout=self._lingers())
        names = ("ActiveState", "SubState", "Result", "MainPID", "NRestarts", "ExecMainStatus")
        done = run(["systemctl", "--user", "show", SERVICE, *(f"--property={name}" for name in names)], check=False)
        if done.returncode:
            return State(installed=True, text=done.stderr.strip(), survives_logout=self._lingers())
        found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        text = f"{found.get('ActiveState')} ({found.get('SubState')})"
        if found.get("Result") not in (None, "", "success"):
            text += f", {found['Result']}, status {found.get('ExecMainStatus')}"
        if found.get("NRestarts") not in (None, "", "0"):
            text += f", restarted {found['NRestarts']} times"
        pid = int(found.get("MainPID") or 0)
        return State(
            installed=True,
            running=found.get("ActiveState") in ("active", "reloading"),
            opened=run(["systemctl", "--user", "is-active", SOCKET], check=False).stdout.strip() == "active",
            pid=pid or None,
            text=text,
            survives_logout=self._lingers(),
            cure=_cure(found),
        )

    def logs(self, lines: int, follow: bool) -> list[str]:
        return ["journalctl", f"--user-unit={SERVICE}", f"--lines={lines}", *(("--follow",) if follow else ())]

    def linger(self, wanted: bool) -> bool:
        if self._lingers() == wanted:
            return False
        run(["loginctl", "enable-linger" if wanted else "disable-linger"])
        return True

    def _lingers(self) -> bool:
        try:
            done = run(["loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value"], check=False)
        except ProviderUnavailable:
            return False
        return done.stdout.strip() == "yes"

    def made_linger(self) -> bool:
        """Whether `install --linger` changed that."""
        try:
            return (self.folder / SERVICE).read_text("utf-8").startswith(LINGER)
        except OSError:
            return False


def _cure(found: dict[str, str]) -> str:
    if found.get("ExecMainStatus") in ("218", "226"):
        return "this systemd can't sandbox a user's service: ctxgate service install --no-sandbox"
    if found.get("ActiveState") == "failed" or found.get("Result") not in (None, "", "success"):
        return "see `ctxgate service logs`, then `ctxgate service install` again"
    return ""


def service(plan: ServicePlan) -> str:
    """The text of ctxgate.service."""
    variables = "".join(f"Environment={quoted(f'{name}={value}')}\n" for name, value in plan.environment.items())
    linger = LINGER if plan.linger else ""
    return f"""\
{linger}# Written by `ctxgate service install`, which replaces it; put changes of your own into a drop-in,
# by `systemctl --user edit {SERVICE}`.
[Unit]
Description=ctxgate, one endpoint for the models on this machine
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
ExecStart={" ".join(argument(word) for word in plan.command)}
ExecReload=/bin/kill -HUP $MAINPID
Sockets={SOCKET}
{variables}Restart=on-failure
RestartSec=2
RestartPreventExitStatus={WRONG_CONFIGURATION}
# The gateway ends its engines itself, after the answers in flight.
KillMode=mixed
TimeoutStopSec={STOP_SECONDS}
# An engine that runs out of memory doesn't end the others.
OOMPolicy=continue
LimitNOFILE={OPEN_FILES}
{HARDENING}{_sandbox(plan)}
[Install]
WantedBy=default.target
Also={SOCKET}
"""


def _sandbox(plan: ServicePlan) -> str:
    if not plan.sandbox:
        return ""
    writable = "".join(f"ReadWritePaths={quoted(f'-{path}')}\n" for path in plan.writable)
    return (
        f"{SANDBOX}{'PrivateTmp=yes' if plan.private_tmp else '# The configuration names a file in /tmp.'}\n{writable}"
    )


def socket(plan: ServicePlan) -> str:
    """The text of ctxgate.socket: connections wait in it while the gateway starts, and none is refused."""
    listen = "".join(f"ListenStream={place.replace('%', '%%')}\n" for place in plan.listen)
    return f"""\
# Written by `ctxgate service install`, from `server` of config.yaml; run that again after a change there.
[Unit]
Description=ctxgate's address

[Socket]
{listen}BindIPv6Only=ipv6-only
Backlog={BACKLOG}
SocketMode=0600
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""


def quoted(text: str) -> str:
    """A value in which systemd splits words and expands `%`."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def argument(text: str) -> str:
    """A word of a command line, in which systemd expands `$`, too."""
    return quoted(text.replace("$", "$$"))

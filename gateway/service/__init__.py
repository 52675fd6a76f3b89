"""The gateway as a service of the user: of systemd on Linux, of launchd on macOS.

What either of them reads is a pure function of a `Plan`; a `Manager` puts it into place and asks how the service fares.
"""

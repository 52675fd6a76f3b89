"""The gateway as a user service: under systemd on Linux, under launchd on macOS.

Their files are a pure function of a `ServicePlan`; a `Manager` installs them and reports the state of the service.
"""

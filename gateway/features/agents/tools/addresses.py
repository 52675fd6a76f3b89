"""Which addresses a model may reach: the public internet, and hosts that the configuration allows."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

# IANA's special-purpose addresses that aren't globally reachable, and multicast.
_IPV4 = tuple(
    IPv4Network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # a public number, but on Azure the host of the virtual machine
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_IPV6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # IETF protocols: Teredo, ORCHID, benchmarking
        "2001:db8::/32",
        "2002::/16",  # 6to4 leads to any IPv4 address
        "3fff::/20",
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
"""IPv4 addresses in a network without IPv4: the last 32 bits."""


def is_public(address: str) -> bool:
    """Whether it is a unicast address of the public internet. False for an invalid address."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        if found.scope_id is not None:
            return False
        if found in _NAT64:
            return is_public(str(IPv4Address(int(found) & 0xFFFFFFFF)))
        return found in _GLOBAL_UNICAST and not any(found in network for network in _IPV6)
    return not any(found in network for network in _IPV4)


def is_own(address: str) -> bool:
    """Whether it is an address of this machine, even a public one: local services are not for the model."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        # Only an own address can be bound. If the check itself fails, treat the address as our own.
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


def is_allowed(host: str, port: int, allowed: Iterable[str]) -> bool:
    """Whether the allow list has the host: see `RoomTools.allow_hosts`."""
    host = host.rstrip(".").lower()
    for entry in allowed:
        name, ports = _split(entry)
        if ports != "*" and port not in ((80, 443) if ports is None else (int(ports),)):
            continue
        if name.startswith("*."):
            if host.endswith(name[1:]) and host != name[1:]:
                return True
        elif host == name or (":" in name and _same_address(host, name)):
            return True
    return False


def _split(entry: str) -> tuple[str, str | None]:
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest[1:] or None
    name, colon, ports = entry.partition(":")
    return name, ports if colon else None


def _same_address(one: str, other: str) -> bool:
    try:
        return ip_address(one) == ip_address(other)
    except ValueError:
        return False

"""Which addresses are public, and which hosts the configuration's list names."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.agents.tools.addresses import is_allowed, is_own, is_public

NOT_PUBLIC = {
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd00:ec2::254"],
    "link-local": ["169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "febf::1"],
    "site-local": ["fec0::1"],
    "shared": ["100.64.0.1", "100.100.100.200", "100.127.255.255"],
    "protocols": ["192.0.0.192", "192.88.99.1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "benchmarking": ["198.18.0.1", "198.19.255.255", "2001:2::1"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "4000::1", "100::1", "5f00::1"],
    "a cloud's host": ["168.63.129.16"],
    "mapped": ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "::ffff:7f00:1"],
    "compatible": ["::127.0.0.1", "::8.8.8.8"],
    "translated": ["::ffff:0:127.0.0.1"],
    "6to4": ["2002:7f00:1::", "2002:a00:1::1", "2002:808:808::1"],
    "Teredo": ["2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "ORCHID": ["2001:20::1"],
    "NAT64": ["64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::10.0.0.1", "64:ff9b:1::8.8.8.8"],
    "no address": [
        "",
        "localhost",
        "127.1",
        "0x7f.0.0.1",
        "2130706433",
        "0177.0.0.1",
        "1.2.3.4.5",
        "[::1]",
        " 1.1.1.1",
    ],
}
PUBLIC = [
    *("8.8.8.8", "1.1.1.1", "93.184.216.34", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1"),
    *("2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "64:ff9b::8.8.8.8"),
]


@pytest.mark.parametrize("kind", NOT_PUBLIC)
def test_not_public(kind: str) -> None:
    assert [address for address in NOT_PUBLIC[kind] if is_public(address)] == []


def test_public() -> None:
    assert [address for address in PUBLIC if not is_public(address)] == []


SPECIAL = st.ip_addresses(v=4).filter(lambda it: not it.is_global or it.is_multicast or it.is_reserved)


@given(SPECIAL)
def test_what_is_not_global_for_the_standard_library_is_not_public(address: IPv4Address) -> None:
    assert not is_public(str(address))


@given(st.ip_addresses())
def test_an_address_is_public_in_each_of_its_forms(address: object) -> None:
    found = ip_address(str(address))
    assert is_public(str(found)) == is_public(found.exploded)


def test_own_addresses() -> None:
    assert is_own("127.0.0.1")
    assert is_own("127.9.9.9") or not is_public("127.9.9.9")
    assert not is_own("8.8.8.8")
    assert not is_own("2606:4700:4700::1111")


@pytest.mark.parametrize(
    ("entry", "yes", "no"),
    [
        (
            "a.example",
            ["a.example:80", "a.example:443", "A.Example:80", "a.example.:80"],
            ["a.example:8080", "b.a.example:80"],
        ),
        ("a.example:8080", ["a.example:8080"], ["a.example:80", "a.example:443"]),
        ("a.example:*", ["a.example:1", "a.example:65535"], ["xa.example:1"]),
        (
            "*.a.example",
            ["b.a.example:80", "c.b.a.example:443"],
            ["a.example:80", "ba.example:80", "a.example.evil:80"],
        ),
        ("127.0.0.1:9", ["127.0.0.1:9"], ["127.0.0.1:10", "127.0.0.2:9", "localhost:9"]),
        ("[::1]:9", ["::1:9", "0:0:0:0:0:0:0:1:9"], ["::1:10", "::2:9", "127.0.0.1:9"]),
        ("[::1]", ["::1:80"], ["::1:81"]),
    ],
)
def test_allowed_hosts(entry: str, yes: list[str], no: list[str]) -> None:
    for hosts, expected in ((yes, True), (no, False)):
        for place in hosts:
            host, _, port = place.rpartition(":")
            assert is_allowed(host, int(port), ["other.example:*", entry]) is expected, place

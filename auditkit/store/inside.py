"""Whether a host lies inside: this machine, its private networks, a cloud's metadata service.

A server outside may redirect to other servers outside, as storage services do, but not to inside: what answers there
may act on a mere request, and nobody outside could have sent it.
"""

from __future__ import annotations

import ipaddress
import socket


def is_inside(host: str, *, resolve: bool) -> bool:
    """Whether `host`, an address or a name, is or (with `resolve`) may lead to an address that is not a public one."""
    literal = _address(host)
    if literal is not None:
        return not literal.is_global
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith((".localhost", ".local", ".internal")):
        return True
    return resolve and any(not found.is_global for found in _resolved(host))


def may_be_outside(host: str, *, resolve: bool) -> bool:
    """Whether `host` is or may lead to a public address: one that stands for addresses of both kinds is neither inside
    nor to be trusted like it.
    """
    literal = _address(host)
    if literal is not None:
        return literal.is_global
    if is_inside(host, resolve=False):
        return False
    found = _resolved(host) if resolve else []
    return not found or any(address.is_global for address in found)


def _resolved(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """What a name stands for; nothing where it stands for nothing, for then nobody can be asked."""
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # of what no name may hold
        return []
    return [found for answer in answers if (found := _address(str(answer[4][0]))) is not None]


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address in any spelling that the system would take: 127.0.0.1, ::1, 2130706433, 0x7f.1, ::ffff:10.0.0.1."""
    text = host.strip("[]").partition("%")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        try:
            return ipaddress.IPv4Address(socket.inet_aton(text))  # as getaddrinfo reads it: short, hexadecimal, octal
        except (OSError, ValueError):  # of what no name may hold
            return None
    return getattr(found, "ipv4_mapped", None) or found

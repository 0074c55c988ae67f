"""The mirrors of a run: plain http(s) addresses of folders, to which paths are appended."""

from __future__ import annotations

import ipaddress
import re

from auditkit.errors import BadArtifact
from auditkit.formats.canonical import shown
from auditkit.formats.limits import LIMITS

# Scheme, host (name, IPv4 or bracketed IPv6), port, path. No user, query or fragment: paths are appended to it.
_MIRROR = re.compile(
    r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?(?:/[A-Za-z0-9._~%!$&'()*+,;=:@/-]*)?"
)


# RFC 1123: labels of 1 to 63 letters, digits and inner hyphens; at most 253 characters; a dot may end the name.
_HOST = re.compile(
    r"(?=.{1,253}\Z)(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*"
    r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.?"
)


def check_mirrors(mirrors: tuple[str, ...]) -> None:
    """Each is a plain http(s) address, at most LIMITS.mirrors of them, none twice; raises `BadArtifact` otherwise."""
    if len(mirrors) > LIMITS.mirrors:
        raise BadArtifact(f"run.mirrors: {len(mirrors)} addresses, at most {LIMITS.mirrors} are allowed")
    seen: set[str] = set()
    for mirror in mirrors:
        short = type(mirror) is str and len(mirror) <= LIMITS.url_characters
        parts = _MIRROR.fullmatch(mirror) if short else None
        if parts is None:
            found = shown(mirror) if type(mirror) is str else type(mirror).__name__
            raise BadArtifact(f"run.mirrors: {found} is not an http(s) address without user, query and fragment")
        host, port = parts.groups()
        if not _is_host(host):
            raise BadArtifact(f"run.mirrors: {shown(mirror)} has a bad host {shown(host)}")
        if port is not None and not 1 <= int(port) <= 65535:
            raise BadArtifact(f"run.mirrors: {shown(mirror)} has port {port}, outside 1 to 65535")
        if mirror in seen:
            raise BadArtifact(f"run.mirrors: {shown(mirror)} is listed twice")
        seen.add(mirror)


def _is_host(host: str) -> bool:
    """Whether this is an IPv6 address in brackets, an IPv4 address, or a name that is not all digits at its end."""
    try:
        if host.startswith("["):
            ipaddress.IPv6Address(host[1:-1])
        elif host.rstrip(".").rpartition(".")[2].isdigit():
            ipaddress.IPv4Address(host)  # as in URLs: a name that ends in a number is an IPv4 address or nothing
        else:
            return _HOST.fullmatch(host) is not None
    except ValueError:
        return False
    return True

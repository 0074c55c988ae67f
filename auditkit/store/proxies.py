"""Which proxy an address goes through, by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY or the system's settings.

httpx has rules of its own, but ignores networks (10.0.0.0/8) in NO_PROXY and fails while the client is made when a
variable it does not need is malformed (encode/httpx 0.28, `get_environment_proxies`).
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies

from auditkit.errors import UsageError

SCHEMES = ("http", "https")


@dataclass(frozen=True)
class Proxy:
    """A proxy's address, with its credentials, and the name of the setting it comes from."""

    url: str
    setting: str


def choose(url: str, settings: Mapping[str, str] | None = None) -> Proxy | None:
    """The proxy for `url`, or None for a direct connection; UsageError naming the variable when it cannot be used.

    `settings` are those of `urllib.request.getproxies`: keys http, https, all, no.
    """
    settings = getproxies() if settings is None else settings
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    kind = parts.scheme if settings.get(parts.scheme) else "all"
    value = settings.get(kind, "").strip()
    if not value or bypassed(host, port, settings.get("no", "")):
        return None
    return Proxy(_checked(value, setting_name(kind)), setting_name(kind))


def setting_name(kind: str) -> str:
    """The environment variable behind a setting, as it is spelt in this environment."""
    name = f"{kind}_proxy"
    return next((n for n in (name, name.upper()) if n in os.environ), f"the system's {kind} proxy")


def bypassed(host: str, port: int, no_proxy: str) -> bool:
    """Whether NO_PROXY names `host`: *, a name (subdomains count), an address or a network, with :port or without."""
    return any(_names(entry.strip().lower(), host.lower().rstrip("."), port) for entry in no_proxy.split(","))


def _names(entry: str, host: str, port: int) -> bool:
    if entry in ("", "*"):
        return entry == "*"
    entry = entry.partition("://")[2] or entry
    address = _address(host)
    if address is not None:
        network = _network(entry.strip("[]"))
        if network is not None:
            return address in network
    name, colon, tail = entry.rpartition(":")
    if colon and tail.isdigit():
        if int(tail) != port:
            return False
        entry = name
    entry = entry.strip("[]").lstrip("*").lstrip(".")
    return host == entry or (address is None and host.endswith("." + entry))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _checked(value: str, setting: str) -> str:
    url = value if "://" in value else f"http://{value}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        # The value may hold a password: only its scheme is shown.
        scheme = url.partition("://")[0]
        raise UsageError(
            f"{setting} names a proxy ({scheme}://...) that cannot be used",
            hint=f"set {setting} to http://host:port, unset it, or list the server in NO_PROXY",
        )
    return url

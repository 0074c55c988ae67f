"""Token buckets: how often a key or an address may do something, in bounded memory."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable

IPV6_PREFIX = 64  # bits; one customer usually has a whole /64


class Buckets:
    """One bucket of `burst` tokens a name, filled with `rate` tokens a second; at most `names` are remembered.

    A bucket that is full again says the same as none, so those used longest ago go first: they are the fullest.
    Not thread-safe: the event loop alone uses it.
    """

    def __init__(self, rate: float, burst: int, names: int, now: Callable[[], float]) -> None:
        self._rate, self._burst, self._names, self._now = rate, burst, names, now
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # name: tokens, when

    def take(self, name: str, count: float = 1.0) -> float:
        """Take `count` tokens; 0.0 if they were there, else the seconds until they will be, and none is taken.

        More than a bucket holds can be had when it is full, and is then owed.
        """
        now = self._now()
        tokens, then = self._levels.get(name, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + max(0.0, now - then) * self._rate)
        needed = min(count, float(self._burst))
        if tokens < needed:
            self._put(name, tokens, now)
            return (needed - tokens) / self._rate
        self._put(name, tokens - count, now)
        return 0.0

    def _put(self, name: str, tokens: float, now: float) -> None:
        self._levels[name] = (tokens, now)
        self._levels.move_to_end(name)
        while len(self._levels) > self._names:
            self._levels.popitem(last=False)


def address_name(host: str) -> str:
    """The name under which the rate of an address is kept: IPv6 by its /64, IPv4 mapped into IPv6 as IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), IPV6_PREFIX), strict=False))

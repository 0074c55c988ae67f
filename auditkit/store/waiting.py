"""How long to wait before the next try, and when a slow server counts as stalled."""

from __future__ import annotations

import email.utils
import math
from datetime import UTC

from auditkit.store.limits import StoreLimits
from auditkit.store.progress import Clock


def retry_after(value: str | None, *, now: float) -> float | None:
    """Seconds that a Retry-After header asks for, a number or an HTTP date; None for anything else.

    `now` is Unix time. A date long past is 0, a negative number is not one; the caller bounds the result.
    RFC 9110 section 10.2.3.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text) if len(text) < 16 else math.inf
    try:
        date = email.utils.parsedate_to_datetime(text)
        # "-0000" and a missing zone give a naive date; RFC 9110 dates are GMT.
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return max(0.0, seconds)


class Tries:
    """The count of tries at one place and the wait before the next one."""

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._failed = 0

    def failed(self, *, gained: int, answered: bool, asked: float | None) -> float | None:
        """Count a failed try that brought `gained` bytes; seconds to wait, or None when it was the last one.

        `answered`: whether the server answered at all; `asked`: what its Retry-After asked for, in seconds.
        """
        limits = self._limits
        self._failed = 1 if gained >= limits.gain_bytes else self._failed + 1
        if self._failed >= (limits.tries if answered else limits.silent_tries):
            return None
        backoff = min(limits.backoff_first_seconds * 2.0 ** (self._failed - 1), limits.backoff_seconds)
        return backoff if asked is None else min(max(asked, limits.backoff_first_seconds), limits.retry_after_seconds)


class Rate:
    """The minimum rate: bytes over windows of fixed length, so that neither a slow start nor the whole time counts."""

    def __init__(self, limits: StoreLimits, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self._since, self._bytes = clock.now(), 0

    def stalled(self, n: int) -> bool:
        """Count `n` bytes that just came; True when the window that ends now was slower than the floor."""
        self._bytes += n
        passed = self._clock.now() - self._since
        if passed < self._limits.rate_window_seconds:
            return False
        slow = self._bytes < self._limits.rate_floor_bytes_per_second * passed
        self._since, self._bytes = self._clock.now(), 0
        return slow

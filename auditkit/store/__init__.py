"""The only network and disk I/O of the verifier: where a run lies, fetching, the cache, unpacking states."""

from __future__ import annotations

from auditkit.store.limits import STORE_LIMITS, StoreLimits
from auditkit.store.locate import locate
from auditkit.store.progress import Clock, Progress, Silent, SystemClock
from auditkit.store.source import Folder, Remote, Source
from auditkit.store.store import Store

__all__ = [
    "STORE_LIMITS",
    "Clock",
    "Folder",
    "Progress",
    "Remote",
    "Silent",
    "Source",
    "Store",
    "StoreLimits",
    "SystemClock",
    "locate",
]

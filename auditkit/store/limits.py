"""Every limit of the store, with its unit, in one place."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Upper bounds unless the name says otherwise; the unit is the end of each name.

    There is no limit on the whole time of a transfer: a slow, honest server may take days.
    """

    connect_seconds: float = 15.0
    silence_seconds: float = 30.0  # between two pieces of an answer
    answer_seconds: float = 60.0  # from the request to the end of the answer's head
    rate_floor_bytes_per_second: int = 1000  # a server slower than this, over one whole window, counts as stalled
    rate_window_seconds: float = 30.0
    tries: int = 8  # of one place, in a row, without the gain below
    silent_tries: int = 4  # the same, where not one byte of an answer came: another mirror is likelier to help
    gain_bytes: int = 256 * KIB  # a try that brought this much starts the count anew
    backoff_first_seconds: float = 0.5  # doubled from try to try
    backoff_seconds: float = 30.0
    retry_after_seconds: float = 60.0  # what a server may make us wait, whatever it asks for
    redirects: int = 5
    manifest_bytes: int = 16 * MIB
    range_bytes: int = 16 * GIB
    spare_disk_bytes: int = 16 * MIB  # left free beside a download
    chunk_bytes: int = MIB  # read, hashed, written or decompressed at once
    leftover_seconds: float = 86400.0  # a partial file of another machine that is older than this is abandoned
    unpack_threads: int = 2
    large_window_bytes: int = 16 * MIB  # zstd frames with a larger window are decompressed one at a time


STORE_LIMITS = StoreLimits()

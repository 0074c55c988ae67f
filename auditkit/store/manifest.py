"""The manifest of a remote run: nothing but its own address vouches for it, so it is fetched anew each time."""

from __future__ import annotations

from auditkit.errors import Unavailable, Unsupported
from auditkit.formats.digest import content_digest
from auditkit.formats.limits import LIMITS
from auditkit.store.cache import Cache
from auditkit.store.progress import Progress
from auditkit.store.source import Remote
from auditkit.store.transfer import Transfer


def fetch_manifest(transfer: Transfer, cache: Cache, progress: Progress, home: Remote, name: str) -> bytes:
    """run.json of a remote run; what was fetched is kept for `recall_manifest`. Errors as `Transfer.document`."""
    data = transfer.document(home, name, LIMITS.manifest_bytes)
    digest = content_digest(data)
    try:
        if not cache.has(digest, len(data)):
            cache.put(data, digest)
        if cache.recall(_key(home, name)) != digest:
            cache.remember(_key(home, name), digest)
    except Unsupported as error:
        progress.note(f"the manifest is not kept for offline use: {error.message}")
    return data


def recall_manifest(cache: Cache, home: Remote, name: str) -> bytes:
    """run.json as it was when last fetched from this address; Unavailable if it never was, or the copy is damaged."""
    digest = cache.recall(_key(home, name))
    data = cache.read(digest, LIMITS.manifest_bytes) if digest else None
    if data is None:
        raise Unavailable(f"{home.show(name)}: not in the cache, and offline", hint="fetch it once without --offline")
    return data


def _key(home: Remote, name: str) -> str:
    return f"manifest\n{home.link(name)}"

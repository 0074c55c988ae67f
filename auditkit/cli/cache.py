"""`auditkit cache`: where downloads are kept, and cleaning up."""

from __future__ import annotations

import typer

from auditkit.cli import options
from auditkit.cli.command import Command
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.verdict import Verdict

app = typer.Typer(help="Show or clean the cache of downloads.", rich_markup_mode=None)


@app.command("path", cls=Command)
def path(cache_dir: options.CacheDir = None, json: options.Json = False) -> Outcome:
    """Print the folder in which downloads are kept."""
    from auditkit.store.cache import Cache
    from auditkit.store.gc import usage
    from auditkit.store.limits import STORE_LIMITS

    cache = Cache.at(cache_dir, STORE_LIMITS)
    if json:
        found = {"format": "auditkit/cache-path/v1", "path": str(cache.folder), "usage": vars(usage(cache))}
        return Outcome(Verdict.MATCH, to_json({"verdict": "MATCH", "code": 0, **found}))
    return Outcome(Verdict.MATCH, printable(str(cache.folder)))


@app.command("gc", cls=Command)
def gc(cache_dir: options.CacheDir = None, json: options.Json = False) -> Outcome:
    """Remove what interrupted downloads left behind; finished files and downloads under way stay."""
    from auditkit.cli.progress import size
    from auditkit.store.cache import Cache
    from auditkit.store.gc import sweep
    from auditkit.store.limits import STORE_LIMITS
    from auditkit.store.progress import SystemClock

    cache = Cache.at(cache_dir, STORE_LIMITS)
    swept = sweep(cache, SystemClock())
    if json:
        found = {"format": "auditkit/cache-gc/v1", "path": str(cache.folder), **vars(swept)}
        return Outcome(Verdict.MATCH, to_json({"verdict": "MATCH", "code": 0, **found}))
    return Outcome(
        Verdict.MATCH,
        f"removed {swept.files} unfinished files, {size(swept.bytes)}, from {printable(str(cache.folder))}",
    )

"""`auditkit doctor`: whether this machine is fit to verify."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from auditkit.cli import options
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.errors import AuditkitError

if TYPE_CHECKING:
    from auditkit.replay.doctor import Health


def doctor(threads: options.Threads = None, cache_dir: options.CacheDir = None, json: options.Json = False) -> Outcome:
    """Test the arithmetic of this machine and show versions, memory, disk and cache.

    Exit code 7 where the self-test fails: such a machine cannot give a verdict about anybody. A cache that cannot be
    written is a warning: without downloads, there is still something to verify.
    """
    from auditkit.replay.doctor import examine

    found, source = examine(threads=threads, cache_dir=cache_dir), _source()
    said = to_json({**found.to_dict(), "source": source}) if json else "\n".join(_lines(found, source))
    return Outcome(found.verdict, said)


def _source() -> str:
    """The digest of this program's source, or why there is none: only who wants to sign needs it."""
    from auditkit.audit.source import source_digest

    try:
        return source_digest()
    except AuditkitError as error:
        return f"unknown: {error.message}"


def _lines(found: Health, source: str) -> Iterator[str]:
    from auditkit.cli.progress import size

    yield f"self-test  {found.self_test}, {found.self_test_seconds:.2f} s in {found.threads} thread(s)"
    yield f"device     {printable(found.device)}"
    yield f"cuda       {printable(found.cuda)}"
    yield f"C ops      {printable(found.native)}"
    yield f"system     {printable(found.system)}"
    for package, version in found.versions.items():
        yield f"version    {package} {version}"
    yield f"source     {printable(source)}"
    yield f"memory     {size(found.total_memory) if found.total_memory else 'unknown'}"
    yield f"cache      {printable(found.cache)}"
    if found.cache_usage is not None:
        held = found.cache_usage
        yield f"           {held.objects} files, {size(held.object_bytes)}"
        yield f"           {held.parts} unfinished, {size(held.part_bytes)}"
    yield f"disk       {size(found.free_disk) if found.free_disk is not None else 'unknown'} free there"
    warnings = (("warning", message, hint) for message, hint in found.warnings)
    for kind, message, hint in (*((verdict.name, *words) for verdict, *words in found.problems), *warnings):
        yield f"{kind}: {printable(message)}"
        if hint:
            yield f"  hint: {printable(hint)}"

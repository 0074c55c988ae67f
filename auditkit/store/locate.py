"""Find a run by the name of a bundled one, by path, or by URL."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from auditkit.errors import Unavailable, UsageError
from auditkit.store.source import MANIFEST, Base, Folder, Remote, Source, parse_remote, redact

BUNDLED = Path(__file__).resolve().parents[2] / "manifests"


def locate(run: str, artifacts: str | None = None, *, token: str = "", bundled: Path = BUNDLED) -> Source:
    """The source of `run`: the NAME of a run in `bundled`, the PATH of a folder or its run.json, or the URL of either.

    `artifacts` (path or URL of a folder) is tried for every file before the run's own place; the manifest is always
    read from the run's own place. `token` is a bearer token for the first http(s) place among `run`, `artifacts`.
    A name wins over a folder of the same name (write ./NAME for the folder). UsageError if there is no such run,
    Unavailable if the folder has no run.json.
    """
    home, manifest = _place(run, token, bundled, "run")
    bases: tuple[Base, ...] = (home,)
    if artifacts is not None:
        if isinstance(home, Remote):
            token = ""
        first, _ = _place(artifacts, token, None, "artifacts")
        bases = (first, home)
    if isinstance(home, Folder) and not (home.path / manifest).is_file():
        raise Unavailable(f"there is no {manifest} in {home.path}", hint="a published run is a folder with a run.json")
    return Source(name=redact(run), home=home, bases=bases, manifest=manifest)


def known(bundled: Path = BUNDLED) -> tuple[str, ...]:
    """The names of the bundled runs, sorted; none outside a source checkout."""
    if not bundled.is_dir():
        return ()
    return tuple(sorted(p.name for p in bundled.iterdir() if (p / MANIFEST).is_file()))


def _place(text: str, token: str, bundled: Path | None, what: str) -> tuple[Base, str]:
    if not text or "\0" in text:
        raise UsageError(f"{what}: an empty or impossible name")
    if "://" in text or text.lower().startswith("file:"):
        return _file_url(text) if text.lower().startswith("file:") else parse_remote(text, token=token)
    if bundled is not None and text in known(bundled):
        return Folder(bundled / text), MANIFEST
    path = Path(text).expanduser() if text.startswith("~") else Path(text)
    if path.is_dir():
        return Folder(_absolute(path)), MANIFEST
    if path.is_file():
        return Folder(_absolute(path).parent), path.name
    raise _unknown(text, bundled, what)


def _unknown(text: str, bundled: Path | None, what: str) -> UsageError:
    if bundled is None:
        return UsageError(f"{what}: there is no folder {text}")
    names = known(bundled)
    hint = f"bundled runs: {', '.join(names)}" if names else "bundled runs exist in a source checkout only"
    return UsageError(f"{what}: {text} is not the name of a bundled run, and there is no such path", hint=hint)


def _file_url(text: str) -> tuple[Base, str]:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UsageError(f"{redact(text)} is not an address of a local file", hint="file:///absolute/path")
    if parts.query or parts.fragment:
        raise UsageError(
            f"{redact(text)}: a local file has no query and no fragment", hint="write ? as %3F and # as %23"
        )
    path = Path(url2pathname(parts.path) if os.name == "nt" else unquote(parts.path))
    if path.is_dir():
        return Folder(path), MANIFEST
    if path.is_file():
        return Folder(path.parent), path.name
    raise UsageError(f"there is no file or folder {path}")


def _absolute(path: Path) -> Path:
    # Not resolve(): a path through a symbolic link is shown as the user wrote it.
    return Path(os.path.abspath(path))

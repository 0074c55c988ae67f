"""Where the files of a run lie: a folder, or a URL to which their paths are appended."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from auditkit.errors import BadArtifact, UsageError
from auditkit.formats.canonical import words
from auditkit.formats.paths import check_path, check_segment

MANIFEST = "run.json"


@dataclass(frozen=True)
class Folder:
    """A folder of this machine; files are read in place."""

    path: Path

    def file(self, path: str) -> Path:
        """The place of the artifact `path`, which may not lead out of the folder (BadArtifact)."""
        return self.path.joinpath(*segments(path))

    def show(self, path: str) -> str:
        """The place of `path` for messages."""
        return str(self.file(path))


@dataclass(frozen=True)
class Remote:
    """A http(s) address without user name, password, query and fragment that ends with a slash.

    `query` (the signature of a storage service, say) is part of every request and, like `authorization`, of no message.
    `named_by` is the address of the run whose manifest named this one, "" for an address that the user gave.
    """

    url: str
    query: str = field(default="", repr=False)
    authorization: str = field(default="", repr=False)
    named_by: str = ""

    def link(self, path: str) -> str:
        """The address of the artifact `path`, with the query."""
        return self.show(path) + (f"?{self.query}" if self.query else "")

    def show(self, path: str) -> str:
        """The address of `path` for messages: no query, no credentials."""
        return self.url + "/".join(quote(s, safe="") for s in segments(path))


Base = Folder | Remote


@dataclass(frozen=True)
class Source:
    """A run: its name for messages, where its manifest lies, and the places of its artifacts in the order to try."""

    name: str
    home: Base
    bases: tuple[Base, ...]
    manifest: str = MANIFEST


def segments(path: str) -> list[str]:
    """The parts of an artifact's path; BadArtifact unless it is relative and safe on every system."""
    return check_path(path, "artifact path").split("/")


def parse_remote(text: str, *, token: str = "") -> tuple[Remote, str]:
    """The base and the file name (run.json if the address names a folder) of a http(s) URL; UsageError if it is none.

    A user name and password in the URL become HTTP Basic credentials; `token` a bearer token.
    """
    if not text.isprintable():  # half a surrogate pair, by which Python stands for bytes that are no UTF-8, is not
        raise UsageError(f"{words(redact(text))} is not a valid address: it holds a character that no address has")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{redact(text)} is not a valid address: {words(error)}") from None
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise UsageError(
            f"{redact(text)} is not an address that can be fetched", hint="use https://, http:// or file://"
        )
    authorization = f"Bearer {token}" if token else ""
    if parts.username or parts.password:
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode("utf-8")).decode("ascii")
    netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port is not None else "")
    folder, _, name = parts.path.rpartition("/")
    if not name.endswith(".json"):
        folder, name = parts.path.rstrip("/"), MANIFEST
    url = urlunsplit((parts.scheme.lower(), netloc, folder + "/", "", ""))
    try:
        return Remote(url, parts.query, authorization), check_segment(unquote(name), "address")
    except BadArtifact as error:
        raise UsageError(error.message) from None


def redact(url: str) -> str:
    """`url` without user name, password, query and fragment, for messages."""
    head, slashes, rest = url.partition("://")
    if not slashes:
        return url.split("?")[0].split("#")[0]
    rest = rest.split("?")[0].split("#")[0]
    authority, slash, path = rest.partition("/")
    return f"{head}://{authority.rpartition('@')[2]}{slash}{path}"

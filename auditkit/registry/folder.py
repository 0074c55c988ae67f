"""A registry's folder: the log, its private key, and the database unless that lies elsewhere.

log.key       private key of the log, its owner's alone; the only secret that a registry has
log.vkey      the public one, under the log's name: what readers of the log need
log/          the log: checkpoint, tiles, and public keys of those who signed its entries
registry.db   SQLite
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import BadArtifact, Unavailable, Unsupported, Untrusted, UsageError
from auditkit.formats.limits import LIMITS
from auditkit.formats.note import NoteKey, check_name
from auditkit.registry import schema
from auditkit.registry.database import Database
from auditkit.registry.engine import Engine
from auditkit.registry.limits import REGISTRY_LIMITS
from auditkit.registry.sqlite import SqliteEngine
from auditkit.trust import key_files, notes
from auditkit.trust.disk import writing
from auditkit.trust.keys import PrivateKey, load_private, new_key, save_private

EXTRA = "pip install 'auditkit-verifier[registry]'"
_SCHEMES = ("postgresql://", "postgres://")


@dataclass(frozen=True)
class Folder:
    """The places in the folder at `path`."""

    path: Path

    @property
    def private(self) -> Path:
        """The log's private key."""
        return self.path / "log.key"

    @property
    def public(self) -> Path:
        """The log's public key as a vkey, whose name is the log's origin."""
        return self.path / "log.vkey"

    @property
    def log(self) -> Path:
        """The log itself."""
        return self.path / "log"

    @property
    def database(self) -> Path:
        """The SQLite database, where no other is named."""
        return self.path / "registry.db"

    def key(self) -> tuple[str, PrivateKey]:
        """The log's origin and private key. Unavailable: no such folder; Untrusted: the two keys are no pair."""
        if not self.public.is_file():
            raise Unavailable(f"{self.path} is not the folder of a registry", hint="auditkit registry init makes one")
        text = key_files.read(self.public, LIMITS.key_file_bytes).decode("utf-8", "replace").strip()
        public, private = NoteKey.parse(text, str(self.public)), load_private(self.private)
        if public != notes.note_key(public.name, private.public):
            raise Untrusted(f"{self.public} is not the public key of {self.private}")
        return public.name, private


def init(path: Path, origin: str, *, address: str | None = None, private: PrivateKey | None = None) -> NoteKey:
    """Make a registry: a folder with a fresh key of its log (or `private`), and tables in a database. Gives the vkey.

    UsageError: there is one already, in the folder or in the database; nothing of it is touched.
    """
    try:
        check_name(origin, "origin")
    except BadArtifact as error:
        raise UsageError(error.message, hint="for example registry.example/attestations") from None
    folder = Folder(path)
    for place in (folder.private, folder.public, folder.log):
        if place.exists():
            raise UsageError(f"{place} exists", hint="a registry is made in a folder of its own")
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    engine = open_engine(folder, address, create=True)
    try:
        schema.require_none(engine)
        key = private or new_key()
        public = notes.note_key(origin, key.public)
        save_private(folder.private, key)
        key_files.write_new(folder.public, f"{public.text}\n".encode(), mode=0o644)
        schema.create(engine, {"vkey": public.text})
    finally:
        engine.close()
    return public


def open_database(folder: Folder, address: str | None = None) -> Database:
    """The database of the registry in `folder`. Untrusted: it belongs to a registry with another log."""
    engine = open_engine(folder, address)
    try:
        database = Database(engine)
        origin, private = folder.key()
        if database.meta.get("vkey") != notes.note_key(origin, private.public).text:
            raise Untrusted(
                f"the database belongs to the log {database.meta.get('vkey')}, and {folder.path} to {origin}",
                hint="one registry has one log and one database",
            )
    except BaseException:
        engine.close()
        raise
    return database


def open_engine(folder: Folder, address: str | None, *, create: bool = False) -> Engine:
    """The database at `address` (a path or postgresql://..), or in the folder. Unsupported: psycopg is missing."""
    readers = REGISTRY_LIMITS.database_connections
    if address is None or not address.startswith(_SCHEMES):
        if address is not None and "://" in address:
            raise UsageError(
                f"{address.partition('://')[0]}:// is not a database that is known here", hint="postgresql://"
            )
        return SqliteEngine(folder.database if address is None else Path(address), create=create, readers=readers)
    try:
        from auditkit.registry.postgres import PostgresEngine
    except ImportError as error:
        raise Unsupported(f"PostgreSQL needs psycopg, which is not installed ({error})", hint=EXTRA) from None
    return PostgresEngine(address, create=create, readers=readers)

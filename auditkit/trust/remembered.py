"""The checkpoints that this user has seen of each log: a log that shows another history later is caught.

`<data>/checkpoints/<log>/<size>-<root>` holds a signed checkpoint, `<log>` being made of key and origin. There are no
locks, which are no-ops on some network file systems: whoever sees a new checkpoint writes its file first and lists the
folder afterwards, so that of two processes that see two histories at once at least one finds the other's file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path

import platformdirs

from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Unsupported, Untrusted
from auditkit.formats import merkle
from auditkit.formats.canonical import shown
from auditkit.formats.limits import LIMITS
from auditkit.formats.note import NoteKey, SignedNote
from auditkit.store.disk import reason
from auditkit.trust import disk, evidence, notes
from auditkit.trust.evidence import Conflict, Seen
from auditkit.trust.log_reader import LogReader

VARIABLE = "AUDITKIT_DATA"
KEPT = 64  # checkpoints of one log; an older one that is seen again takes a proof, no more

_NAME = re.compile(r"(0|[1-9][0-9]{0,15})-[0-9a-f]{64}")
_HINT = "keep that folder and show it to others: its signatures prove it, whoever shows them"


class Split(Untrusted):
    """one key signed two histories of one log"""


def data_dir() -> Path:
    """$AUDITKIT_DATA, else the user's data folder by the custom of the system; Unsupported if there is none."""
    chosen = os.environ.get(VARIABLE, "")
    refused = Unsupported("there is no home folder to remember checkpoints in", hint=f"set {VARIABLE} to a folder")
    try:
        path = Path(os.path.expanduser(chosen) if chosen else platformdirs.user_data_dir("auditkit", appauthor=False))
    except RuntimeError:  # no HOME and no account entry
        raise refused from None
    if str(path).startswith("~"):  # the same, and it would become a folder of that name here
        raise refused
    return Path(os.path.abspath(path))


class Remembered:
    """What was seen of the log of `key` and `origin`, below the user's data `folder`; `say` is told of trouble."""

    def __init__(self, key: NoteKey, origin: str, folder: Path, say: Callable[[str], None]) -> None:
        log = hashlib.sha256(f"{key.text}\n{origin}".encode()).hexdigest()[:32]
        self._key, self._origin, self._say = key, origin, say
        self._folder = folder / "checkpoints" / log
        self._evidence = folder / evidence.FOLDER / log

    def check(self, reader: LogReader) -> str:
        """Compare the log's checkpoint with those seen before, remember it, and say how they stand to each other.

        Split: it belongs to another history; the evidence is kept, and from then on the log is refused. Unavailable: an
        older state of the log, and the tiles that would show that it is the begin of what was seen before are missing.
        """
        seen = Seen(reader.note, reader.checkpoint())
        before = evidence.kept(self._evidence)
        if before is not None:
            raise Split(f"log {shown(self._origin)} showed two histories before: see {before}", hint=_HINT)
        known = self._known()
        words = self._compare(reader, seen, known.values())
        if seen.name not in known and self._remember(seen):
            meanwhile = self._known()
            self._compare(reader, seen, [meanwhile[name] for name in meanwhile.keys() - known.keys() - {seen.name}])
        return words

    def largest(self) -> int:
        """How many entries the log had at most where this user saw it; 0 if it was never seen."""
        return max((found.checkpoint.size for found in self._known().values()), default=0)

    def _compare(self, reader: LogReader, seen: Seen, known: Collection[Seen]) -> str:
        size, others = seen.checkpoint.size, [other for other in known if other.name != seen.name]
        for other in others:
            if other.checkpoint.size == size:
                raise self._split(Conflict(self._key, other, seen))
        last = max(known, key=lambda other: other.checkpoint.size, default=None)
        if last is None:
            return "not seen before on this machine"
        if len(others) < len(known):
            newer = f"; {last.checkpoint.size} entries were seen as well" if last.checkpoint.size > size else ""
            return f"seen before on this machine{newer}"
        if last.checkpoint.size < size:
            self._continues(reader, last, seen)
            return f"continues the {last.checkpoint.size} entries seen before on this machine"
        try:
            self._continues(reader.at(last.note), seen, last)
        except Unavailable as error:
            raise Unavailable(
                f"an older state of the log, {size} entries where {last.checkpoint.size} were seen before, and nothing "
                f"there shows that it is the same log: {error.message}",
                hint="the mirror may be old: take another place, with --artifacts or --run",
            ) from error
        return f"an older state: the begin of the {last.checkpoint.size} entries seen before on this machine"

    def _continues(self, reader: LogReader, smaller: Seen, larger: Seen) -> None:
        """Split unless the log of `larger`, which `reader` reads, begins with `smaller`."""
        old, new = smaller.checkpoint, larger.checkpoint
        proof = reader.consistency(old.size)
        try:
            merkle.verify_consistency(old.size, new.size, proof, old.root, new.root)
        except Untrusted:
            root = reader.root_at(old.size)
            merkle.verify_consistency(old.size, new.size, proof, root, new.root)  # what the evidence says
            raise self._split(Conflict(self._key, smaller, larger, tuple(proof), root)) from None

    def _split(self, conflict: Conflict) -> Split:
        small, large = conflict.smaller.checkpoint, conflict.larger.checkpoint
        told = (
            f"log {shown(self._origin)} has two histories: key {self._key.text} signed "
            f"{small.describe()}, and {large.describe()}"
        )
        try:
            return Split(f"{told}; both are kept in {evidence.keep(self._evidence, conflict)}", hint=_HINT)
        except Unsupported as error:
            return Split(f"{told}; they could not be kept: {error.message}", hint="note both down")

    def _remember(self, seen: Seen) -> bool:
        place = self._folder / seen.name
        try:
            with disk.writing(place):
                place.parent.mkdir(parents=True, exist_ok=True)
            disk.write(place, seen.note.encode())
        except Unsupported as error:
            self._say(f"the log's checkpoint cannot be remembered for later: {error.message}")
            return False
        for name in sorted(self._names(), key=_size, reverse=True)[KEPT:]:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)
        return True

    def _names(self) -> set[str]:
        try:
            return {name for name in os.listdir(self._folder) if _NAME.fullmatch(name)}
        except FileNotFoundError:
            return set()
        except OSError as error:
            self._say(f"the checkpoints seen before cannot be read: {self._folder}: {reason(error)}")
            return set()

    def _known(self) -> dict[str, Seen]:
        return {name: found for name in self._names() if (found := self._load(name)) is not None}

    def _load(self, name: str) -> Seen | None:
        """A remembered checkpoint, checked like any other; one that this disk spoilt is nobody's fault and left out."""
        place = self._folder / name
        try:
            data = disk.read(place, LIMITS.note_bytes)
            if data is None:
                return None
            note = SignedNote.parse(data)
            found = Seen(note, notes.verify_checkpoint(note, self._key, self._origin))
            if found.name != name:
                raise BadArtifact("another checkpoint than its name says")
        except AuditkitError as error:
            self._say(f"{place}: a remembered checkpoint is damaged and not used ({error.message})")
            return None
        return found


def _size(name: str) -> int:
    return int(name.partition("-")[0])

"""How a run is published while it is trained: `publication.json` in its work folder, with which `resume` goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from auditkit.errors import BadArtifact, UsageError
from auditkit.formats import canonical
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from trainer.disk import read_bytes, write_atomic
from trainer.publish import PublishOptions, check_options

FILE = "publication.json"
FORMAT = "auditkit/trainer-publication/v1"
TRIES, SECONDS = 5, 3600  # of an upload
_MOST_SECONDS, _MOST_TRIES = 1_000_000, 1000


@dataclass(frozen=True)
class LiveOptions:
    """What the user says of the publication; None: nothing.

    every    steps between two publications at least, 0 for one with each state that is kept
    upload   a command for the shell, "" for none; `tries` times at most, each of at most so many `seconds`
    """

    out: Path | None = None
    name: str | None = None
    mirrors: tuple[str, ...] | None = None
    compact: bool | None = None
    log_key: Path | None = None
    origin: str | None = None
    every: int | None = None
    upload: str | None = None
    tries: int | None = None
    seconds: int | None = None


NOT_PUBLISHED = LiveOptions()


@dataclass(frozen=True)
class Publication:
    """What is remembered, fields as in LiveOptions; paths are absolute."""

    out: Path
    name: str
    mirrors: tuple[str, ...] = ()
    compact: bool = False
    log_key: Path | None = None
    origin: str | None = None
    every: int = 0
    upload: str = ""
    tries: int = TRIES
    seconds: int = SECONDS

    def options(self) -> PublishOptions:
        """The options with which `publish` would write the same folder at the end."""
        return PublishOptions(self.name, self.mirrors, True, self.compact, None, self.log_key, self.origin)

    def encode(self) -> bytes:
        """Canonical JSON."""
        value: dict[str, canonical.Value] = {
            "compact": self.compact,
            "every": self.every,
            "format": FORMAT,
            "log_key": "" if self.log_key is None else str(self.log_key),
            "mirrors": list(self.mirrors),
            "name": self.name,
            "origin": self.origin or "",
            "out": str(self.out),
            "seconds": self.seconds,
            "tries": self.tries,
            "upload": self.upload,
        }
        return canonical.dumps(value, what=FILE)

    @classmethod
    def parse(cls, data: bytes) -> Publication:
        """Read what `encode` wrote; raises `BadArtifact`."""
        fields = Fields(canonical.loads(data, what=FILE, limit=LIMITS.manifest_bytes), FILE)
        fields.choice("format", FORMAT)
        key, origin = _text(fields, "log_key"), _text(fields, "origin")
        found = cls(
            out=Path(_text(fields, "out")),
            name=_text(fields, "name"),
            mirrors=tuple(str(mirror) for mirror in Fields.items(fields, "mirrors", 0, LIMITS.mirrors)),
            compact=fields.flag("compact"),
            log_key=Path(key) if key else None,
            origin=origin or None,
            every=fields.integer("every", 0, LIMITS.steps, "steps"),
            upload=_text(fields, "upload"),
            tries=fields.integer("tries", 1, _MOST_TRIES),
            seconds=fields.integer("seconds", 1, _MOST_SECONDS, "seconds"),
        )
        fields.done()
        return found


def _text(fields: Fields, key: str) -> str:
    found = fields.raw(key)
    if type(found) is not str:
        raise BadArtifact(f"{fields.name(key)}: not a text")
    return found


def load(folder: Path) -> Publication | None:
    """What is remembered in a work folder, None where nothing is; raises `BadArtifact` or `Unavailable`."""
    path = folder / FILE
    return Publication.parse(read_bytes(path)) if path.is_file() else None


def save(folder: Path, publication: Publication) -> None:
    """Remember it, at once."""
    write_atomic(folder / FILE, publication.encode())


def begin(options: LiveOptions) -> Publication | None:
    """The publication of a new run, if one is asked for; raises `UsageError` for options that do not go together."""
    if options == NOT_PUBLISHED:
        return None
    if options.out is None or options.name is None:
        raise UsageError(
            "a run that is published while it is trained needs a folder and a name", hint="--publish OUT --name NAME"
        )
    return _merged(Publication(Path(), options.name), options)


def go_on(options: LiveOptions, remembered: Publication | None) -> Publication | None:
    """The publication of a run that goes on; raises `UsageError` where an option contradicts what was published."""
    if remembered is None:
        return begin(options)
    for option, said, before in (
        ("--name", options.name, remembered.name),
        ("--origin", options.origin, remembered.origin),
        ("--compact", options.compact, remembered.compact),
    ):
        if said is not None and said != before and not (option == "--origin" and remembered.log_key is None):
            raise UsageError(
                f"{option}: this run is published with {_words(before)}, and what is published stays",
                hint="leave the option out",
            )
    return _merged(remembered, options)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "--compact" if value else "its token stream, not --compact"
    return "an origin made of its run id" if value is None else repr(value)


def _merged(before: Publication, options: LiveOptions) -> Publication:
    said: dict[str, Any] = {key: value for key, value in vars(options).items() if value is not None}
    for key in ("out", "log_key"):
        if key in said:
            said[key] = said[key].absolute()
    made = replace(before, **said)
    check_options(made.options())
    if made.origin is not None and made.log_key is None:
        raise UsageError("--origin names the log that --log-key signs", hint="give both, or none")
    return made

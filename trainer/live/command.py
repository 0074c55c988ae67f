"""The options of a publication while training, and the command that repeats an upload."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from pathlib import Path

from auditkit.cli import console
from auditkit.errors import Unavailable, UsageError
from auditkit.store.lock import only_writer
from trainer import lock
from trainer.live import settings
from trainer.live.settings import SECONDS, TRIES, LiveOptions
from trainer.live.upload import Uploads
from trainer.live.worker import pause

Number = Callable[[str], int]


def add_arguments(parser: argparse.ArgumentParser, positive: Number) -> None:
    """The options of `run` and `resume`; what is said once is remembered."""
    group = parser.add_argument_group("publish while training", "remembered in WORK, so that resume needs none of them")
    group.add_argument("--publish", type=Path, metavar="OUT", help="run folder that grows with each kept state")
    group.add_argument("--name", help="name of the run")
    group.add_argument("--mirror", action="append", metavar="URL", help="where files will lie; repeatable")
    group.add_argument("--compact", action="store_true", default=None, help="without token stream, as publish has it")
    group.add_argument("--log-key", type=Path, metavar="KEYFILE", help="sign a log of the records with this key")
    group.add_argument("--origin", metavar="NAME", help="name of that log (default: auditkit-run/RUN_ID)")
    group.add_argument(
        "--publish-every", type=positive, metavar="K", help="at least K steps apart (default: each kept state)"
    )
    add_upload(group, positive)


def add_upload(group: argparse._ActionsContainer, positive: Number) -> None:
    """The options of an upload."""
    group.add_argument(
        "--upload", metavar="COMMAND", help="for the shell, after each publication; '' for none any more"
    )
    group.add_argument("--upload-tries", type=positive, metavar="N", help=f"tries of each upload (default {TRIES})")
    group.add_argument(
        "--upload-seconds", type=positive, metavar="S", help=f"longest time of a try (default {SECONDS})"
    )


def options(arguments: argparse.Namespace) -> LiveOptions:
    """What the user has said."""
    return LiveOptions(
        out=arguments.publish,
        name=arguments.name,
        mirrors=None if arguments.mirror is None else tuple(arguments.mirror),
        compact=arguments.compact,
        log_key=arguments.log_key,
        origin=arguments.origin,
        every=arguments.publish_every,
        upload=arguments.upload,
        tries=arguments.upload_tries,
        seconds=arguments.upload_seconds,
    )


def upload(arguments: argparse.Namespace) -> tuple[int, str]:
    """Repeat the upload of what is published; exit code and summary. Raises `Unavailable` when all tries fail."""
    folder: Path = arguments.work
    with lock.hold(folder):
        publication = settings.load(folder)
        if publication is None:
            raise UsageError(f"{folder}: is not published while it is trained", hint="python -m trainer publish")
        said = LiveOptions(upload=arguments.upload, tries=arguments.upload_tries, seconds=arguments.upload_seconds)
        publication = settings.go_on(said, publication) or publication
        if not publication.upload:
            raise UsageError(f"{folder}: no command to upload with is known", hint="--upload COMMAND")
        settings.save(folder, publication)
        if not publication.out.is_dir():
            raise Unavailable(f"{publication.out}: there is no run folder yet")
        with only_writer(publication.out):
            return _tried(Uploads(folder, publication.out, publication.upload, publication.seconds), publication.tries)


def _tried(uploads: Uploads, tries: int) -> tuple[int, str]:
    manifest = uploads.pending()
    if manifest is None:
        return 0, "nothing to upload: all that is published was uploaded"
    why = uploads.run(manifest, threading.Event())
    for number in range(1, tries):
        if why:
            console.tell(f"upload failed: {why}; trying again in {pause(number):g} s")
            time.sleep(pause(number))
            why = uploads.run(manifest, threading.Event())
    if why:
        raise Unavailable(f"the upload has not succeeded: {why}", hint=f"what the command said: {uploads.said}")
    return 0, f"uploaded {manifest.steps} steps"

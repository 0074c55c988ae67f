"""What is remembered of a publication, and what may be said again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, UsageError
from trainer.live.settings import NOT_PUBLISHED, LiveOptions, Publication, begin, go_on

FULL = Publication(
    Path("/srv/runs/out ä").absolute(),
    "run",
    ("https://example.org/a",),
    True,
    Path("key.pem").absolute(),
    "example.org/run",
    7,
    "rclone copy \"$AUDITKIT_FOLDER\" 'b:'",
    3,
    60,
)


@pytest.mark.parametrize("found", [FULL, Publication(Path("/out").absolute(), "run")])
def test_it_comes_back_as_it_was(found: Publication) -> None:
    assert Publication.parse(found.encode()) == found


@pytest.mark.parametrize("old, new", [(b'"tries":3', b'"tries":0'), (b'"name":"run"', b'"name":3'), (b"v1", b"v2")])
def test_a_damaged_file_is_refused(old: bytes, new: bytes) -> None:
    assert old in FULL.encode()
    with pytest.raises(BadArtifact):
        Publication.parse(FULL.encode().replace(old, new))


def test_nothing_said_is_no_publication() -> None:
    assert begin(NOT_PUBLISHED) is None
    assert go_on(NOT_PUBLISHED, None) is None
    assert go_on(NOT_PUBLISHED, FULL) == FULL


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (LiveOptions(name="run"), "needs a folder and a name"),
        (LiveOptions(out=Path("out")), "needs a folder and a name"),
        (LiveOptions(out=Path("out"), name="a/b"), "--name"),
        (LiveOptions(out=Path("out"), name="run", mirrors=("ftp://x",)), "--mirror"),
        (LiveOptions(out=Path("out"), name="run", origin="x"), "--origin names the log"),
    ],
)
def test_options_that_do_not_go_together(said: LiveOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        begin(said)


@pytest.mark.parametrize("said", [LiveOptions(name="b"), LiveOptions(origin="b"), LiveOptions(compact=False)])
def test_what_is_published_stays(said: LiveOptions) -> None:
    with pytest.raises(UsageError, match="what is published stays"):
        go_on(said, FULL)


def test_all_else_may_change() -> None:
    said = LiveOptions(out=Path("other"), name="run", mirrors=(), every=0, upload="", tries=1, seconds=2)
    assert go_on(said, FULL) == replace(
        FULL, out=Path("other").absolute(), mirrors=(), every=0, upload="", tries=1, seconds=2
    )

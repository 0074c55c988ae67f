"""Which error tells best what went wrong at several places."""

from __future__ import annotations

import pytest

from auditkit.errors import BadArtifact, Unavailable, Untrusted
from auditkit.store.failures import Failures
from tests.store.tools import Story

WRONG, AWAY = BadArtifact("a: digest 1, but 2", hint="a page"), Unavailable("b: silent", hint="a login")


@pytest.mark.parametrize(
    ("errors", "kind", "message", "hint"),
    [
        ([], Unavailable, "x: nowhere", "look"),
        ([WRONG], BadArtifact, "x: a: digest 1, but 2", "a page"),
        ([AWAY], Unavailable, "x: b: silent", "a login"),
        ([WRONG, AWAY], Unavailable, "x: a: digest 1, but 2; b: silent", "a login"),
        ([WRONG, WRONG], BadArtifact, "x: a: digest 1, but 2", "a page"),
        ([Unavailable("c: 404"), AWAY], Unavailable, "x: c: 404; b: silent", "a login"),
        ([Unavailable("c: 404")], Unavailable, "x: c: 404", "look"),
        ([WRONG, Untrusted("d: signature")], Untrusted, "x: a: digest 1, but 2; d: signature", "a page"),
        ([Untrusted("d: signature"), AWAY], Unavailable, "x: d: signature; b: silent", "a login"),
    ],
)
def test_the_error(errors: list[BadArtifact | Unavailable], kind: type, message: str, hint: str) -> None:
    failures = Failures("x", Story())
    for error in errors:
        failures.add(error)
    found = failures.error("nowhere", "look")
    assert (type(found), found.message, found.hint) == (kind, message, hint)


def test_each_failure_but_the_last_is_noted() -> None:
    story = Story()
    failures = Failures("x", story)
    failures.next_place()
    failures.add(WRONG)
    failures.next_place()
    failures.add(AWAY)
    assert story.notes == ["a: digest 1, but 2; trying the next place"]


def test_a_damaged_copy_is_told() -> None:
    failures = Failures("x", Story())
    failures.damaged = True
    assert failures.error("not here").message == "x: the cached copy is damaged, not here"

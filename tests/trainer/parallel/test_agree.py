"""What ranks agree on: the findings of all, or one error for all."""

from __future__ import annotations

import pytest

from auditkit.errors import AuditkitError, MachineFault, Unavailable, Unsupported, UsageError
from auditkit.numerics.nonfinite import NonFinite
from tests.trainer.parallel.thread_group import ThreadGroup, play
from trainer.parallel.agree import Caught, agree
from trainer.parallel.group import AlreadyTold, RankLost


def found_by(errors: list[AuditkitError | None]) -> list[object]:
    """What each rank gets when ranks have caught these."""

    def one(group: ThreadGroup) -> object:
        caught, error = Caught(), errors[group.rank]
        with caught.catching():
            if error is not None:
                raise error
        try:
            return agree(group, caught, b"rank %d" % group.rank)
        except AuditkitError as raised:
            return type(raised), raised.message, raised.hint

    return play(len(errors), one)


def test_without_an_error_every_rank_gets_what_all_have_found() -> None:
    assert found_by([None, None, None]) == [[b"rank 0", b"rank 1", b"rank 2"]] * 3


@pytest.mark.parametrize(
    ("errors", "kind", "message"),
    [
        ([None, NonFinite("a value is not finite")], NonFinite, "a value is not finite"),
        ([NonFinite("first"), NonFinite("second")], NonFinite, "first"),
        ([NonFinite("x"), Unsupported("too little memory")], Unsupported, "rank 1: too little memory"),
        ([UsageError("a"), Unsupported("b"), MachineFault("c"), NonFinite("d")], MachineFault, "rank 2: c"),
        ([None, Unavailable("dès lors")], Unavailable, "rank 1: dès lors"),
    ],
)
def test_an_error_is_every_rank_s(errors: list[AuditkitError | None], kind: type, message: str) -> None:
    assert found_by(errors) == [(kind, message, "")] * len(errors)


def test_the_hint_travels() -> None:
    assert found_by([UsageError("a", hint="b"), None]) == [(UsageError, "rank 0: a", "b")] * 2


@pytest.mark.parametrize("error", [RankLost("rank 3 is gone"), AlreadyTold(5), KeyboardInterrupt(), ValueError()])
def test_what_ends_the_run_is_not_caught(error: BaseException) -> None:
    with pytest.raises(type(error)), Caught().catching():
        raise error


def test_the_first_error_counts() -> None:
    caught = Caught()
    for text in ("first", "second"):
        with caught.catching():
            raise UsageError(text)
    assert caught.error is not None and caught.error.message == "first"

"""Work beside the training: one piece at a time, its errors where the result is taken."""

from __future__ import annotations

import threading

import pytest

from trainer.background import Background


def test_it_runs_elsewhere_and_its_result_is_taken_once() -> None:
    background: Background[int] = Background("test")
    go = threading.Event()
    assert not background.busy and not background.ended
    background.begin(lambda: go.wait(30) and threading.get_ident() or 0)
    assert background.busy and not background.ended
    go.set()
    background.wait()
    assert background.ended
    assert background.result() not in (0, threading.get_ident())
    assert not background.busy
    background.drop(finish=True)


def test_an_error_waits_for_whoever_takes_the_result() -> None:
    background: Background[None] = Background("test")
    background.begin(lambda: [][0])
    background.wait()
    with pytest.raises(IndexError):
        background.result()
    background.begin(lambda: [][0])
    background.drop(finish=True)  # something else has ended the training


def test_work_that_is_asked_to_break_off_is_waited_for() -> None:
    background: Background[bool] = Background("test")
    seen: list[bool] = []
    background.begin(lambda: seen.append(background.stop.wait(30)) or True)
    background.drop(finish=False)
    assert seen == [True]

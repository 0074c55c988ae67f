"""Stop requests (the signals themselves are tried on real processes in test_run.py)."""

from __future__ import annotations

import signal
import threading

import pytest

from trainer.stop import StopRequest, watch_signals


def test_the_first_request_is_noted_and_the_second_interrupt_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    request = StopRequest()
    assert not request
    request.handle(signal.SIGINT, None)
    assert request
    assert capsys.readouterr().err == "sigint: finishing this step, then saving\n"
    with pytest.raises(KeyboardInterrupt):
        request.handle(signal.SIGINT, None)


def test_a_repeated_termination_waits_for_the_state() -> None:
    request = StopRequest()
    request.handle(signal.SIGTERM, None)
    request.handle(signal.SIGTERM, None)
    assert request.signal is signal.SIGTERM


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with watch_signals():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_catches_nothing_and_works() -> None:
    found: list[bool] = []

    def work() -> None:
        with watch_signals() as request:
            found.append(bool(request))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]

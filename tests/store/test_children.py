"""Processes that Ctrl-C does not reach, from their first instruction on."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest

from auditkit.store.children import shielded_from_interrupts

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="Windows has no signals"),
    pytest.mark.optional("Windows has no signals"),
]


def tell_mask(end: Connection) -> None:
    end.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))


@pytest.mark.parametrize("method", ["spawn"])  # a fork server that runs already has its own mask
def test_an_interruption_right_after_the_start_is_not_seen(method: str) -> None:
    context = get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=tell_mask, args=(there,))
    with shielded_from_interrupts():
        process.start()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)  # the interpreter has hardly begun
    assert here.poll(60)
    assert here.recv() is True
    process.join(60)
    assert process.exitcode == 0


def test_the_own_interruption_is_not_lost() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt), shielded_from_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])

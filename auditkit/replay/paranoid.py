"""For machines one does not believe: every result computed twice, and known answers between micro-batches.

A fault that is steady passes the self-test, a fault that comes and goes misses it. A step that is computed twice, or
on two back ends, meets both; known answers in between tell in the middle of a long step that the machine has gone bad.
"""

from __future__ import annotations

from collections.abc import Callable

from auditkit.errors import Unsupported, UsageError
from auditkit.model.state import State
from auditkit.numerics.known_answers import PROBES
from auditkit.replay.backend import Backend, choose
from auditkit.store.progress import Clock

SAME, BOTH = "same", "both"
SHARE = 0.01  # of the time that known answers may take


def second(mode: str | None, first: Backend, threads: int | None) -> Backend | None:
    """The back end that computes everything once more: `first` itself for "same", the other kind of device for "both".

    None: nothing is computed twice. UsageError: another `mode`. Unsupported: there is no other device; MachineFault: it
    fails its self-test.
    """
    if mode is None:
        return None
    if mode not in (SAME, BOTH):
        raise UsageError(f"paranoid {mode!r} is not {SAME} or {BOTH}")
    if mode == SAME:
        return first
    try:
        other = choose("cuda" if first.device == "cpu" else "cpu", threads)
    except Unsupported as error:
        raise Unsupported(
            f"--paranoid={BOTH} needs two kinds of devices: {error.message}", hint="--paranoid computes twice on one"
        ) from error
    other.self_test()
    return other


def moved(state: State, source: Backend, target: Backend) -> State:
    """A state of one back end where another computes."""
    return state if source is target else target.place(source.host(state))


class KnownAnswers:
    """One op's known answers at a time, in turn, as often as their share of the time allows; `run` counts them.

    Call it between micro-batches, from the thread that computes; it raises MachineFault that names the op.
    """

    def __init__(self, backend: Backend, clock: Clock, *, share: float = SHARE) -> None:
        self._backend, self._clock, self._share = backend, clock, share
        self._names = tuple(PROBES)
        self._due = clock.now()
        self.run = 0

    def __call__(self) -> None:
        """Run the next one if its time has come."""
        began = self._clock.now()
        if began < self._due:
            return
        self._backend.known_answer(self._names[self.run % len(self._names)])
        self.run += 1
        ended = self._clock.now()
        self._due = ended + (ended - began) / self._share


def known_answers(backend: Backend, clock: Clock, *, always: bool) -> KnownAnswers | None:
    """Known answers in between on a GPU, whose memory and kernels are not this process's own, and where asked for."""
    return KnownAnswers(backend, clock) if always or backend.answers_in_between else None


def between(answers: KnownAnswers | None, advance: Callable[[int], None]) -> Callable[[int], None]:
    """What a step calls after each micro-batch."""

    def one(_done: int) -> None:
        advance(1)
        if answers is not None:
            answers()

    return one

"""The training loop: every step is `auditkit.model.step.step`; here its results are only written down."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from numpy.typing import NDArray

from auditkit.errors import AuditkitError, UsageError
from auditkit.formats.bits import f32_bits
from auditkit.formats.digest import Digest
from auditkit.formats.leaves import MicroBatchLeaf, micro_root
from auditkit.formats.record import RecordRow
from auditkit.formats.stream import batch_digest
from auditkit.model.step import NonFinite, StepResult
from auditkit.replay.windows import Windows
from trainer.disk import remove
from trainer.progress import Report, progress
from trainer.runner import Runner, S
from trainer.skips import Skips
from trainer.states import complete_steps
from trainer.stop import StopRequest
from trainer.work import Settings, Work


class Log(Protocol):
    """Where a training writes its steps: a RunLog, or nothing on ranks that do not lead."""

    def append(
        self, row: RecordRow, parts: tuple[MicroBatchLeaf, ...], tokens: NDArray[Any], metrics: dict[str, Any]
    ) -> None: ...
    def sync(self) -> None: ...


def _unheard(step: int) -> None:
    """Nobody waits for complete states."""


@dataclass(frozen=True)
class Training(Generic[S]):
    """What stays the same in a segment of a run; who computes may differ between two resumes without changing a bit.

    `settings.steps` is where the segment ends. `completed` is told of each complete state, in another thread.
    """

    work: Work
    settings: Settings
    batches: Windows
    runner: Runner[S]
    completed: Callable[[int], None] = _unheard
    skips: Skips = field(default_factory=Skips)

    def train(self, state: S, log: Log, stop: StopRequest) -> S:
        """Step until the last step or a stop request, and leave a complete state of the step reached.

        Raises `UsageError` when a step has no result, and nothing of that step is written, or when too many on end are
        skipped.
        """
        try:
            state = self._train(state, log, stop)
            self.runner.settle()
        except BaseException as error:
            self.runner.drop(finish=isinstance(error, AuditkitError))
            raise
        return state

    def _train(self, state: S, log: Log, stop: StopRequest) -> S:
        last_step, saved = self.settings.steps, state.step
        with self._progress(state.step) as report:
            while state.step < last_step and not self.runner.stops(bool(stop)):
                state, detail = self._step(state, log, stop)
                self.runner.advance()
                if self.settings.keeps(state.step):
                    self.save(state, log)
                    saved = state.step
                report(state.step, detail)
        if saved != state.step:  # asked to stop
            self.save(state, log)
        return state

    def _progress(self, done: int) -> AbstractContextManager[Report]:
        return progress("training", self.settings.steps, done) if self.runner.leads else nullcontext(_unseen)

    def save(self, state: S, log: Log) -> None:
        """Begin to write a state: first what was appended so far, then the state; it is complete after `settle`."""
        step = state.step
        self.runner.write(state, self.work.state(step), log.sync, lambda: self._complete(step))

    def _complete(self, step: int) -> None:
        """Remove the states that were kept only for a resume, now that there is a later one, and tell of that."""
        for number in complete_steps(self.work.states):
            if number < step and not self.settings.keeps(number):
                remove(self.work.state(number))
        self.completed(step)

    def _step(self, state: S, log: Log, stop: StopRequest) -> tuple[S, str]:
        started = time.perf_counter()
        tokens = self.batches.tokens(state.step)  # (sequences, context_length + 1)
        try:
            new, result, root = self.runner.step(state, tokens, bool(stop))
        except NonFinite as error:
            self.runner.settle()  # it ends all ranks, and the last state is worth having
            raise UsageError(
                f"step {state.step} has no result: {error.message}",
                hint="the recipe diverges: lower schedule.peak_lr, set optimizer.clip_norm, or skip such steps"
                " ([divergence] of the recipe); earlier states are kept",
            ) from error
        seconds = time.perf_counter() - started
        targets = tokens.shape[0] * (tokens.shape[1] - 1)
        metrics = _metrics(new.step - 1, result, seconds, targets)
        log.append(_row(root, batch_digest(tokens), result), result.leaves, tokens, metrics)
        too_many = self.skips.look(state.step, result, tells=self.runner.leads)
        if too_many is not None:
            self.runner.settle()  # as above
            raise too_many
        said = "skipped" if result.skipped else f"loss {metrics['loss']:.4f}"
        return new, f"{said}, {metrics['tokens_per_second']:.0f} tokens/s"


def _unseen(done: int, detail: str) -> None:
    """Progress of a rank that does not lead."""


def _row(state_after: Digest, batch: Digest, result: StepResult) -> RecordRow:
    return RecordRow(
        state_after=state_after,
        batch=batch,
        gradient=result.gradient,
        micro_root=micro_root(result.leaves),
        loss=f32_bits(float(result.loss)),
        norm=f32_bits(float(result.norm)),
        lr=f32_bits(float(result.lr)),
    )


def _metrics(step_number: int, result: StepResult, seconds: float, targets: int) -> dict[str, Any]:
    """Figures for people; nothing reads them back but the plot."""
    return {
        "step": step_number,
        "loss": float(result.loss),
        "norm": float(result.norm),
        "lr": float(result.lr),
        "tokens_per_second": round(targets / seconds, 1),
        "seconds": round(seconds, 4),
        **({"skipped": result.skipped} if result.skipped else {}),
    }

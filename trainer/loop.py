"""The training loop: every step is `auditkit.model.step.step`; here its results are only written down."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from auditkit.errors import UsageError
from auditkit.formats.bits import f32_bits
from auditkit.formats.digest import Digest
from auditkit.formats.leaves import micro_root
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import RecordRow
from auditkit.formats.stream import batch_digest
from auditkit.model.state import State, document, state_digests
from auditkit.model.step import NonFinite, StepResult
from auditkit.replay.backend import Backend
from auditkit.replay.windows import Windows
from trainer.disk import remove
from trainer.log import RunLog
from trainer.progress import progress
from trainer.states import complete_steps, write_state
from trainer.stop import StopRequest
from trainer.work import Settings, Work


@dataclass(frozen=True)
class Training:
    """What stays the same during a run; the back end may differ between two resumes without changing a bit."""

    work: Work
    recipe: Recipe
    settings: Settings
    batches: Windows
    backend: Backend

    def train(self, state: State, log: RunLog, stop: StopRequest) -> State:
        """Step until the last step or a stop request, and leave a complete state of the step reached.

        Raises `UsageError` when a step has no finite result: nothing of that step is written.
        """
        last_step, saved = self.settings.steps, state.step
        with progress("training", last_step, state.step) as report:
            while state.step < last_step and not stop:
                state, detail = self._step(state, log)
                if self.settings.keeps(state.step) or stop:
                    self.save(state, log)
                    saved = state.step
                report(state.step, detail)
        if saved != state.step:  # asked to stop between the test for it and the loop's
            self.save(state, log)
        return state

    def save(self, state: State, log: RunLog) -> None:
        """Complete a state: first what was appended so far, then the state, then drop those kept only for resume."""
        log.sync()
        found = document(state, self.recipe, self.backend.ops)
        write_state(self.work.state(state.step), self.backend.host(state), found)
        for step_number in complete_steps(self.work.states):
            if step_number < state.step and not self.settings.keeps(step_number):
                remove(self.work.state(step_number))

    def _step(self, state: State, log: RunLog) -> tuple[State, str]:
        started = time.perf_counter()
        tokens = self.batches.tokens(state.step)  # (sequences, context_length + 1)
        try:
            new, result = self.backend.step(state, tokens, self.recipe)
        except NonFinite as error:
            raise UsageError(
                f"step {state.step} has no finite result: {error.message}",
                hint="the recipe diverges: lower schedule.peak_lr, or set optimizer.clip_norm; earlier states are kept",
            ) from error
        root = state_digests(new, self.recipe, self.backend.ops).root(new.step)
        seconds = time.perf_counter() - started
        targets = tokens.shape[0] * (tokens.shape[1] - 1)
        metrics = _metrics(state.step, result, seconds, targets)
        log.append(_row(root, batch_digest(tokens), result), result.leaves, tokens, metrics)
        return new, f"loss {metrics['loss']:.4f}, {metrics['tokens_per_second']:.0f} tokens/s"


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
    }

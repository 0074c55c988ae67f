"""Verify steps of a published run: the numbered checks, from the manifest to the last bit of the state after a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from auditkit.errors import AuditkitError, BadArtifact, UsageError
from auditkit.formats.digest import Digest
from auditkit.replay import arguments, machine
from auditkit.replay.backend import Backend, choose
from auditkit.replay.boundary import entered
from auditkit.replay.interval import Replayer, WorkKey
from auditkit.replay.log_check import LogCheck, check_links
from auditkit.replay.placing import planned
from auditkit.replay.plan import Interval, intervals
from auditkit.replay.published import open_state
from auditkit.replay.report import Check, Report, Status, StepReport, overall
from auditkit.replay.run import Run, default_run, open_run
from auditkit.replay.selection import Selection, select
from auditkit.replay.unchecked import unchecked
from auditkit.store.progress import Clock, Progress, Silent
from auditkit.verdict import Verdict

OUT_OF_MEMORY = "out of memory"
MEMORY_HINT = "`auditkit plan` says how much a step needs; fewer --threads need less"


def verify(
    run: arguments.Place | None = None,
    *,
    step: int | None = None,
    steps: str | tuple[int, int] | range | None = None,
    random: int | None = None,
    seed: int | None = None,
    part: str | tuple[int, int] | None = None,
    artifacts: arguments.Place | None = None,
    device: str = "auto",
    threads: int | None = None,
    offline: bool = False,
    cache_dir: arguments.Place | None = None,
    progress: Progress | None = None,
    downloads: Progress | None = None,
    backend: Backend | None = None,
    work_key: WorkKey | None = None,
    clock: Clock | None = None,
    on_step: Callable[[Report], None] | None = None,
    log: LogCheck | None = None,
    memory: int | str | None = None,
    program: Callable[[], Digest] | None = None,
) -> Report:
    """Verify one step, a half-open range of steps ("A:B", a pair or a range), or `random` steps drawn with `seed`.

    `steps` may also be a list in words ("3,17,20:25"). `part` is "I/N": of the steps asked for, those of the I-th of N
    machines, which replays from as few states as can be.
    `run` is the name of a bundled run, a path or a URL (default: the bundled run); `artifacts` a folder or URL that is
    tried first. `device` is "auto" or "cpu". `progress` is told of replayed micro-batches, `downloads` of fetched
    bytes. `backend` replaces the device's own. `work_key` gives the key (32 bytes) of a run id and a step, under which
    each wanted step's proof of work is made; `clock` says how long and when a step was replayed. `on_step` is given a
    report of each wanted step alone as soon as there is one. `log` judges the signed log of a run that has one
    (auditkit.verify has it judged); without, the report says that nobody asked. `memory` ("8GiB") is how much may be
    used where the device computes, by default most of what is free. `program` names who may go on with what is left.

    Everything a publisher, the network or the machine can cause is a verdict of the report. Raises UsageError only, for
    a call or a selection that makes no sense.
    """
    selection = select(step=step, steps=steps, random=random, seed=seed, part=part)
    arguments.check_options(device, threads, offline)
    named, nearer = arguments.place("run", run), arguments.place("artifacts", artifacts)
    folder, limit = arguments.folder("cache_dir", cache_dir), arguments.memory(memory)
    draft = _Draft(default_run() if named is None else named, selection, on_step)
    number: int | None = None
    try:
        # Before anything is fetched: a machine that cannot calculate, or a device that is not there, ends it here.
        ready = draft.ready(backend or choose(device, threads))
        # 1 manifest
        number = 1
        draft.run = open_run(draft.name, artifacts=nearer, cache_dir=folder, offline=offline, progress=downloads)
    except UsageError:
        raise
    except AuditkitError as error:
        return draft.failed(error, number)
    shown = progress or Silent()
    with draft.run:
        begin = functools.partial(planned, backend=ready, memory=limit, progress=shown, program=program, clock=clock)
        replayer = functools.partial(Replayer, draft.run, progress=shown, work_key=work_key, clock=clock)
        return _verify(draft, draft.run, lambda run, plan: replayer(draft.under(begin(run, plan))), shown, log)


class _Draft:
    """A report in the making."""

    def __init__(self, name: str, selection: Selection, on_step: Callable[[Report], None] | None = None) -> None:
        self.name = name
        self.selection = selection
        self.on_step = on_step
        self.backend: Backend | None = None
        self.self_test = "not run"
        self.run: Run | None = None
        self.wanted: tuple[int, ...] = ()
        self.checks: list[Check] = []
        self.steps: list[StepReport] = []
        self.log: tuple[str, ...] | None = None  # what the check of the signed log left open

    def ready(self, backend: Backend) -> Backend:
        """Take a back end that passes its self-test. Raises MachineFault or Unsupported."""
        self.backend, self.self_test = backend, "failed"
        backend.self_test()
        self.self_test = "passed"
        return backend

    def under(self, backend: Backend) -> Backend:
        """Take the same back end under the plan of the verification."""
        self.backend = backend
        return backend

    def add(self, step: StepReport) -> None:
        """Take the report of a step, and hand it on alone if it was asked for."""
        self.steps.append(step)
        if self.on_step is not None and not step.on_the_way:
            self.on_step(self.report(step.verdict, step.message, step.hint, only=step))

    def failed(self, error: AuditkitError, number: int | None = None) -> Report:
        """The report of a verification that ends before any step, at check `number` if it is one."""
        if number is not None:
            self.checks.append(Check(number, Status.FAILED, error.message))
        return self.report(error.verdict, error.message, error.hint)

    def report(self, verdict: Verdict, message: str = "", hint: str = "", *, only: StepReport | None = None) -> Report:
        """The report of what has been found so far, or of one step of it."""
        steps = tuple(self.steps) if only is None else (only,)
        wanted = self.wanted if only is None else (only.step,)
        done = {check.number for check in self.checks}
        skipped = [Check(number, Status.SKIPPED) for number in range(1, 4) if number not in done]
        return Report(
            run=self.run.name if self.run else self.name,
            selection=self.selection.describe(),
            verdict=verdict,
            run_id=self.run.run_id if self.run else "",
            manifest=self.run.manifest_digest if self.run else "",
            numerics=self.run.recipe.numerics.version if self.run else 0,
            wanted=wanted,
            checks=tuple(sorted([*self.checks, *skipped], key=lambda check: check.number)),
            steps=steps,
            not_checked=unchecked(self.run, steps, self.log) if self.run else (),
            machine=self._machine(),
            message=message,
            hint=hint,
        )

    def _machine(self) -> dict[str, str]:
        if self.backend is None:
            return {}
        backend = self.backend
        used = {"device": backend.device, "device_choice": backend.chosen, "threads": str(backend.threads)}
        return {**machine.describe(), **backend.describe(), **used, "self_test": self.self_test}


def _verify(
    draft: _Draft,
    run: Run,
    replayer: Callable[[Run, Sequence[Interval]], Replayer],
    progress: Progress,
    log: LogCheck | None,
) -> Report:
    draft.wanted = draft.selection.resolve(run.size, run.published)
    # 1 manifest
    draft.checks.append(Check(1, Status.OK, run.manifest_digest))
    plan = intervals(draft.wanted, run.published)
    for number, check in _record_checks(draft, run, plan, log):
        try:
            draft.checks.append(Check(number, Status.OK, check()))
        except AuditkitError as error:
            return draft.failed(error, number)
    try:
        ready = replayer(run, plan)
    except AuditkitError as error:
        return draft.failed(error)
    # 4 to 8, step by step
    _replay_all(draft, ready, plan, run, progress)
    verdict = overall(draft.steps, draft.wanted)
    return draft.report(verdict)


def _record_checks(
    draft: _Draft, run: Run, plan: Sequence[Interval], log: LogCheck | None
) -> Iterator[tuple[int, Callable[[], str]]]:
    """Checks 2 and 3 in the order in which they can be made: records that the log gives are in it to begin with."""
    needed = log.needed(run, plan) if log else None

    def signed() -> str:
        if log is None:
            return check_log(run)
        draft.log = ()  # asked for, whatever comes of it
        found = log.check(run, needed)
        draft.log, run.taken = found.not_checked, found.records
        if needed is not None:
            return found.detail
        return f"{check_log(run)}; {found.detail}" if found.detail else check_log(run)

    if needed is None:
        yield 2, lambda: check_chain(run)
    yield 3, signed
    if needed is not None:
        yield 2, lambda: check_links(run, run.taken or {})


def check_chain(run: Run) -> str:
    """Check 2: records.bin is the manifest's, rebuilds a chain, and ends each published state in its root."""
    # 2 record chain
    records = run.records
    for step, state in run.published.items():
        recorded = run.state_before(step)
        if state.root != recorded:
            raise BadArtifact(
                f"published state {step} has root {state.root}, but record {step - 1} ends in {recorded}",
                hint=_same_root(run, state.root),
            )
    states = f"{len(run.published)} published state{'s' if len(run.published) > 1 else ''}"
    return f"{len(records)} records{_segments(run, places=True)}, each naming the one before; {states} where they say"


def check_log(run: Run) -> str:
    """Check 3: the RFC 6962 root over all records is the manifest's."""
    # 3 record against the log root
    if run.log_root != run.manifest.log.root:
        raise BadArtifact(
            f"the records have log root {run.log_root}, the manifest says {run.manifest.log.root}",
            hint=_other_root(run),
        )
    return f"root {run.log_root} over all {run.size} records{_segments(run)}"


def _segments(run: Run, places: bool = False) -> str:
    """The records of segments, which lie between those of steps, in words; nothing for a run of one segment."""
    steps = [str(segment.start) for segment in run.timeline.later]
    if not steps:
        return ""
    word = "record" if len(steps) == 1 else "records"
    shown = ", ".join(steps[:5]) + (", .." if len(steps) > 5 else "")
    before = f" (before step{'' if len(steps) == 1 else 's'} {shown})" if places else ""
    return f" and {len(steps)} segment {word}{before}"


def _other_root(run: Run) -> str:
    """Why the records may not have the manifest's log root; the segments that do not fit a published state, first."""
    for segment in run.timeline.later:
        if segment.start in run.published:
            try:
                entered(run, open_state(run, segment.start).document, segment, segment.state)
            except BadArtifact as error:
                return error.message
            except AuditkitError:
                continue  # it cannot be had here: that explains nothing
    which = "the manifest, or of its segments," if run.timeline.later else "the manifest"
    return f"records were changed or swapped, or the recipe or data of {which} are not those of the records"


def _same_root(run: Run, root: str) -> str:
    for record in run.records:
        if record.state_after == root:
            return f"this is the state after step {record.step}, which is state {record.step + 1}"
        if run.timeline.begun(record.step) is not None and record.state_before == root:
            return f"this is the root from which the segment of step {record.step} on begins, not the one before it"
    return ""


def _replay_all(draft: _Draft, replayer: Replayer, plan: Sequence[Interval], run: Run, progress: Progress) -> None:
    leaves = run.timeline.leaves_before
    total = sum(leaves(interval.stop) - leaves(interval.start) for interval in plan)
    progress.start("replay", total, "micro-batches")
    try:
        for interval in plan:
            _replay_one(draft, replayer, interval)
    finally:
        progress.finish()


def _replay_one(draft: _Draft, replayer: Replayer, interval: Interval) -> None:
    try:
        for report in replayer.replay(interval):
            draft.add(report)
    except MemoryError:
        done = {report.step for report in draft.steps}
        for step in interval.wanted:
            if step not in done:
                lost = replayer.unanswered(interval, step, Verdict.UNSUPPORTED, OUT_OF_MEMORY, MEMORY_HINT)
                draft.add(lost)

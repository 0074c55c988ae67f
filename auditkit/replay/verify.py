"""Verify steps of a published run: the numbered checks, from the manifest to the last bit of the state after a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from auditkit.errors import AuditkitError, BadArtifact, Unsupported, UsageError
from auditkit.formats.digest import Digest
from auditkit.formats.micro_batches import MicroBatches
from auditkit.replay import arguments, machine
from auditkit.replay.backend import Backend, choose
from auditkit.replay.boundary import entered
from auditkit.replay.chosen import Asked
from auditkit.replay.interval import Replayer, WorkKey
from auditkit.replay.log_check import LogCheck, check_links
from auditkit.replay.paranoid import second
from auditkit.replay.part import Audit
from auditkit.replay.part_run import audit_part, check_asked, of_step, require_room, way_to
from auditkit.replay.placing import planned
from auditkit.replay.plan import Interval, intervals
from auditkit.replay.published import open_state
from auditkit.replay.report import Check, Report, Status, StepReport, overall
from auditkit.replay.run import Run, default_run, open_run
from auditkit.replay.selection import Selection, select
from auditkit.replay.unchecked import unchecked
from auditkit.store.progress import Clock, Progress, Silent, SystemClock, moment
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
    paranoid: str | None = None,
    micro_batches: Asked | None = None,
    replay_to: bool = False,
) -> Report:
    """Verify one step, a half-open range of steps ("A:B", a pair or a range), or `random` steps drawn with `seed`.

    `steps` may also be a list in words ("3,17,20:25"); `part` is "I/N": of the steps those of the I-th of N machines.
    `micro_batches` ("0-3,7", "all", numbers) audits these alone of one `step`, without its update; `replay_to` replays
    up to it where the state is not published.
    `run` is the name of a bundled run, a path or a URL (default: the bundled run); `artifacts` a folder or URL that is
    tried first. `device` is "auto" or "cpu"; `backend` replaces the device's own; `paranoid` is "same" (all is computed
    twice, known answers in between) or "both" (on a GPU and the CPU); `memory` ("8GiB") how much may be used, by
    default most of what is free; `program` who may go on with what is left. `progress` is told of micro-batches,
    `downloads` of bytes, `on_step` is given a report of each wanted step. `work_key` gives the key (32 bytes) of a run
    id and a step, `clock` the times. `log` judges the signed log; without, the report says that nobody asked.

    Everything a publisher, the network or the machine can cause is a verdict of the report. Raises UsageError only.
    """
    selection = select(step=step, steps=steps, random=random, seed=seed, part=part)
    check_asked(micro_batches, step, replay_to)
    arguments.check_options(device, threads, offline)
    named, nearer = arguments.place("run", run), arguments.place("artifacts", artifacts)
    folder, limit = arguments.folder("cache_dir", cache_dir), arguments.memory(memory)
    draft = _Draft(default_run() if named is None else named, selection, on_step, micro_batches, replay_to)
    try:  # before anything is fetched: a machine that cannot calculate, or a device that is not there, ends it here
        moment(clock or SystemClock())
        ready = draft.ready(backend or choose(device, threads), progress or Silent())
        twice = second(paranoid, ready, threads)
        draft.checking = 1  # manifest
        draft.run = open_run(draft.name, artifacts=nearer, cache_dir=folder, offline=offline, progress=downloads)
    except UsageError:
        raise
    except AuditkitError as error:
        return draft.failed(error, draft.checking)
    with draft.run:
        audit = Audit(draft.run, ready, progress or Silent(), clock or SystemClock(), work_key, twice)
        return _verify(draft, audit, limit, program, log, downloads or Silent())


class _Draft:
    """A report in the making."""

    def __init__(
        self,
        name: str,
        selection: Selection,
        on_step: Callable[[Report], None] | None = None,
        asked: Asked | None = None,
        replay_to: bool = False,
    ) -> None:
        self.name = name
        self.asked, self.replay_to = asked, replay_to
        self.checking: int | None = None  # the check under way, before there is a run
        self.chosen: MicroBatches | None = None  # where only these of one step were asked for
        self.selection = selection
        self.on_step = on_step
        self.backend: Backend | None = None
        self.self_test = "not run"
        self.run: Run | None = None
        self.wanted: tuple[int, ...] = ()
        self.checks: list[Check] = []
        self.steps: list[StepReport] = []
        self.log: tuple[str, ...] | None = None  # what the check of the signed log left open

    def ready(self, backend: Backend, progress: Progress) -> Backend:
        """Take a back end that passes its self-test. Raises MachineFault or Unsupported."""
        self.backend, self.self_test = backend, "failed"
        backend.prepare(progress)
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
            selection=self.selection.describe() + (f", {self.chosen.describe()}" if self.chosen else ""),
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
    audit: Audit,
    memory: int | None,
    program: Callable[[], Digest] | None,
    log: LogCheck | None,
    story: Progress,
) -> Report:
    run = audit.run
    draft.wanted = draft.selection.resolve(run.size, run.published)
    draft.selection.tell(story)
    if draft.asked is not None:
        draft.chosen = of_step(run, draft.wanted[0], draft.asked, draft.replay_to)
    # 1 manifest
    draft.checks.append(Check(1, Status.OK, run.manifest_digest))
    plan = intervals(draft.wanted, run.published)
    for number, check in _record_checks(draft, run, plan, log):
        try:
            draft.checks.append(Check(number, Status.OK, check()))
        except AuditkitError as error:
            return draft.failed(error, number)
    try:
        if draft.chosen is not None:
            require_room(run, draft.wanted[0], draft.chosen, audit.backend, memory)
        steps = plan if draft.chosen is None else (way_to(plan[0]),)
        replayer = _replayer(draft, audit, steps, memory, program) if any(i.steps for i in steps) else None
    except AuditkitError as error:
        return draft.failed(error)
    # 4 to 8, step by step
    if draft.chosen is not None:
        for report in audit_part(audit, replayer, plan[0], draft.chosen):
            draft.add(report)
    elif replayer is not None:
        _replay_all(draft, replayer, plan, run, audit.progress)
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
        draft.log = found.not_checked
        run.take(found.records)
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


def _replayer(
    draft: _Draft,
    audit: Audit,
    plan: Sequence[Interval],
    memory: int | None,
    program: Callable[[], Digest] | None,
) -> Replayer:
    """What replays the steps, under the plan that this machine allows. Raises Unsupported."""
    run, clock, progress = audit.run, audit.clock, audit.progress
    begun = draft.under(planned(run, plan, audit.backend, memory, progress, program=program, clock=clock))
    second = begun if audit.second is audit.backend else audit.second
    if second is not None and second is not begun and not begun.holds:
        raise Unsupported(
            "--paranoid=both needs room for everything in memory, on both kinds of devices",
            hint="--paranoid computes twice on one",
        )
    return Replayer(run, begun, progress, work_key=audit.work_key, clock=clock, second=second)


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
        replayer.backend.release()


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

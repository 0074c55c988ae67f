"""Explain a step that does not match: what departs first, and what it was if that can be confirmed by replaying."""

from __future__ import annotations

from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Unsupported, UsageError
from auditkit.explain import seed as seeds
from auditkit.explain.bench import Bench
from auditkit.explain.examine import Examination
from auditkit.explain.findings import Explanation, Standing, Story
from auditkit.explain.patterns import StatePattern
from auditkit.explain.subject import Start, reach
from auditkit.explain.surroundings import Surroundings
from auditkit.explain.tracing import Parting, compare, record
from auditkit.formats.skips import NO_GRADIENT
from auditkit.formats.trace import Trace
from auditkit.replay import arguments
from auditkit.replay.backend import Backend, choose
from auditkit.replay.report import Report, Status, StepReport
from auditkit.replay.run import Run, open_run
from auditkit.replay.verify import verify
from auditkit.store.progress import Progress, Silent
from auditkit.verdict import Verdict


def explain(
    run: arguments.Place | None = None,
    *,
    step: int,
    trace: Trace | None = None,
    quick: bool = False,
    artifacts: arguments.Place | None = None,
    device: str = "auto",
    threads: int | None = None,
    offline: bool = False,
    cache_dir: arguments.Place | None = None,
    progress: Progress | None = None,
    downloads: Progress | None = None,
    backend: Backend | None = None,
) -> Explanation:
    """Verify a step, and if it does not match find out why.

    trace   of the same step by the publisher: the first op at which it parts from the replay here is named
    quick   fewer guesses: no search for a token, none that needs a state far from a published one

    The other arguments are those of `verify`. A verdict other than MISMATCH is the explanation's too, and nothing is
    looked for. Raises UsageError for a call that makes no sense, or a trace of another step.
    """
    arguments.check_options(device, threads, offline)
    ready = backend or choose(device, threads)
    told = progress or Silent()
    report = verify(
        run, step=step, artifacts=artifacts, device=device, threads=threads, offline=offline, cache_dir=cache_dir,
        progress=told, downloads=downloads, backend=ready,
    )  # fmt: skip
    found = next((one for one in report.steps if one.verdict is Verdict.MISMATCH), None)
    if report.verdict is not Verdict.MISMATCH or found is None:
        return Explanation(report, step, None)
    try:
        opened = open_run(
            arguments.place("run", run), artifacts=arguments.place("artifacts", artifacts),
            cache_dir=arguments.folder("cache_dir", cache_dir), offline=offline, progress=downloads,
        )  # fmt: skip
        with opened:
            if opened.manifest_digest != report.manifest:
                raise Unavailable("run.json is no longer the one that was verified", hint="try again")
            return _explain(opened, report, step, found, ready, told, quick, trace)
    except (Unavailable, BadArtifact, Unsupported, MemoryError) as error:  # the mismatch stands all the same
        said = error.message if isinstance(error, AuditkitError) else "out of memory"
        return Explanation(report, step, found, notes=(f"the cause could not be looked for: {said}",))


def _explain(
    run: Run,
    report: Report,
    asked: int,
    found: StepReport,
    backend: Backend,
    progress: Progress,
    quick: bool,
    trace: Trace | None,
) -> Explanation:
    if trace is not None and (trace.run_id, trace.step) != (run.run_id, found.step):
        raise UsageError(f"the trace is of step {trace.step} of run {trace.run_id}, not of step {found.step} of this")
    story = Story()
    if found.step != asked:
        story.notes.append(f"step {found.step} on the way to step {asked} is the first that does not match")
    failed = {check.number for check in found.checks if check.status is Status.FAILED}
    if 4 in failed:
        pattern = seeds.explain(run, story, quick)
        return _made(report, asked, found, story, pattern)
    start = reach(run, found.step, backend, progress)
    parting = _parting(start, backend, trace, story)
    if 6 in failed:
        story.add("step", Standing.DIFFERENT, f"the record claims a result, but the step has none: {found.message}")
        return _made(report, asked, found, story, None, parting)
    count = start.recipe.batch.micro_batches
    bench = Bench(start, backend, 60 + 4 * count if quick else 500 + 40 * count, progress)
    around = Surroundings(run, start, backend, progress, story, quick=quick)
    without = found.skipped if found.obtained and found.obtained.gradient == NO_GRADIENT else ""
    work = Examination(start, run.record(found.step), bench, around, story, quick, without)
    progress.start("explain", bench.budget, "micro-batches")
    try:
        work.examine()
    finally:
        progress.finish()
    return _made(report, asked, found, story, work.pattern, parting, bench.spent)


def _parting(start: Start, backend: Backend, trace: Trace | None, story: Story) -> Parting | None:
    if trace is None:
        return None
    only = None if trace.whole or len(trace.micro_batches) != 1 else trace.micro_batches[0]
    try:
        return compare(trace, record(start, backend, micro_batch=only))
    except UsageError:
        raise
    except AuditkitError as error:
        story.notes.append(f"the trace could not be compared: {error.message}")
        return None


def _made(
    report: Report,
    asked: int,
    found: StepReport,
    story: Story,
    pattern: StatePattern | None,
    parting: Parting | None = None,
    spent: int = 0,
) -> Explanation:
    return Explanation(
        report=report,
        asked=asked,
        step=found,
        quantities=tuple(story.quantities),
        causes=tuple(story.causes),
        confirmed=story.confirmed,
        pattern=pattern,
        parting=parting,
        tried=tuple(f"{words}: {count}" for words, count in sorted(story.tried.items())),
        not_tried=tuple(dict.fromkeys(story.not_tried)),
        notes=tuple(story.notes),
        spent=spent,
    )

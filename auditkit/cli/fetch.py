"""`auditkit fetch`: bring what a verification needs to this machine."""

from __future__ import annotations

from auditkit.cli import options
from auditkit.cli.outcome import Outcome, to_json
from auditkit.verdict import Verdict


def fetch(
    step: options.Step = None,
    steps: options.Steps = None,
    random: options.Random = None,
    seed: options.Seed = None,
    part: options.Part = None,
    micro_batch: options.MicroBatch = None,
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Fetch the pairs of states, the records and the tokens of some steps, and nothing else.

    `auditkit verify --offline` with the same steps then needs no network.
    """
    from auditkit.audit.signed_log import SignedLog
    from auditkit.cli.console import printable
    from auditkit.cli.progress import Board, size
    from auditkit.replay.fetch import fetch as bring
    from auditkit.replay.part_run import check_asked
    from auditkit.replay.selection import select

    selection = select(step=step, steps=steps, random=random, seed=seed, part=part)
    check_asked(micro_batch or None, step, False)
    with Board() as board:
        done = bring(
            run,
            selection,
            artifacts=artifacts,
            cache_dir=cache_dir,
            offline=offline,
            downloads=board.handle(),
            log=SignedLog(),
            micro_batches=micro_batch or None,
        )
    if json:
        return Outcome(Verdict.MATCH, to_json({"verdict": "MATCH", "code": 0, **done.to_dict()}))
    lines = [f"run  {printable(done.run)}, {done.selection}"]
    for need, place in zip(done.needs.files, done.places, strict=True):
        lines.append(f"{size(need.size):>10}  {printable(need.path)}  {printable(str(place))}")
    if done.needs.ranges:
        what = "parameters, " if any(need.shard for need in done.needs.ranges) else ""
        frames = sum(need.length for need in done.needs.ranges)
        lines.append(f"{size(frames):>10}  {what}tokens and micro-batch leaves of the steps that are replayed")
    if done.log:
        lines.append(f"signed log  {printable(done.log)}")
    lines.append(f"all {size(done.needs.total)} are here and checked; {size(done.fetched)} were fetched now")
    return Outcome(Verdict.MATCH, "\n".join(lines))

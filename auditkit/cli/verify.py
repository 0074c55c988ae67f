"""`auditkit verify`: replay steps of a run and compare every bit."""

from __future__ import annotations

from auditkit.cli import options
from auditkit.cli.outcome import Outcome


def verify(
    step: options.Step = None,
    steps: options.Steps = None,
    random: options.Random = None,
    seed: options.Seed = None,
    part: options.Part = None,
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Verify steps of a run: replay them here and compare every digest with the published one.

    Choose exactly one of --step, --steps and --random. A step whose start state is not published is reached from the
    last one before it that is, and every record on the way is checked too.
    """
    from auditkit.cli.progress import Board
    from auditkit.cli.render import report_text
    from auditkit.replay.verify import verify as replay_and_compare

    with Board() as board:
        report = replay_and_compare(
            run,
            step=step,
            steps=steps,
            random=random,
            seed=seed,
            part=part,
            artifacts=artifacts,
            device=device,
            threads=threads,
            offline=offline,
            cache_dir=cache_dir,
            progress=board.handle(),
            downloads=board.handle(),
        )
    return Outcome(report.verdict, report.to_json() if json else report_text(report))

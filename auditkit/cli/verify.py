"""`auditkit verify`: replay steps of a run and compare every bit."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from auditkit.cli import options, signing
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome
from auditkit.verdict import Verdict

if TYPE_CHECKING:
    from auditkit.formats.policy import Policy
    from auditkit.replay.report import Report


def verify(
    step: options.Step = None,
    steps: options.Steps = None,
    random: options.Random = None,
    seed: options.Seed = None,
    part: options.Part = None,
    micro_batch: options.MicroBatch = None,
    replay_to: options.ReplayTo = False,
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    publisher: options.Publisher = None,
    policy: options.LogPolicy = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    memory: options.Memory = None,
    paranoid: options.Paranoid = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    attest: signing.Key = None,
    attest_dir: signing.Folder = None,
    automation: signing.Automation = None,
    json: options.Json = False,
) -> Outcome:
    """Verify steps of a run: replay them here and compare every digest with the published one.

    Choose exactly one of --step, --steps and --random. A step whose start state is not published is reached from the
    last one before it that is. --micro-batch audits a part of one step. With --attest, each step is attested, whether
    it matches or not. A signed log is verified as well; --publisher and --policy say whose it must be.
    """
    from auditkit.audit.verify import verify as replay_and_compare
    from auditkit.cli.progress import Board

    options.check(step, steps, random, seed, part, micro_batch, replay_to, memory)  # before a folder is made
    asked, signer = _policy(policy, publisher), signing.Signing.begin(attest, attest_dir, automation)
    with Board() as board:
        report = replay_and_compare(
            run,
            step=step,
            steps=steps,
            random=random,
            seed=seed,
            part=part,
            micro_batches=micro_batch or None,
            replay_to=replay_to,
            artifacts=artifacts,
            publisher=publisher,
            policy=asked,
            device=device,
            threads=threads,
            memory=memory,
            paranoid=paranoid,
            offline=offline,
            cache_dir=cache_dir,
            progress=board.handle(),
            downloads=board.handle(),
            work_key=signer.attester.work_key if signer else None,
            on_step=signer.step if signer else None,
        )
    return _outcome(report, signer, json, run)


def _policy(path: Path | None, publisher: str | None) -> Policy | None:
    """The policy of a file, if one is given. UsageError: `publisher` is no vkey, or not the policy's."""
    from auditkit.audit.verify import rule
    from auditkit.trust.policy import load_policy

    policy = load_policy(path) if path is not None else None
    rule(publisher, policy)
    return policy


def _outcome(report: Report, signer: signing.Signing | None, json: bool, run: str | None) -> Outcome:
    from auditkit.cli.render import report_text

    text = report_text(report) + _next(report, run)
    if signer:
        return signer.outcome(report, text, json=json)
    return Outcome(report.verdict, report.to_json() if json else text)


def _next(report: Report, run: str | None) -> str:
    """The command that looks for the cause of the first mismatch, if there is one."""
    step = next((one.step for one in report.steps if one.verdict is Verdict.MISMATCH), None)
    if step is None:
        return ""
    where = "" if run is None else f"--run {shlex.quote(printable(run))} "
    return f"to see what departs first, and why if that can be confirmed: auditkit explain {where}--step {step}\n"

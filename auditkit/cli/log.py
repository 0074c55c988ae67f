"""`auditkit log`: a run's signed log, proofs of its records for use offline, and checks of such proofs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.command import ComputingCommand
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.errors import Unavailable
from auditkit.verdict import Verdict

if TYPE_CHECKING:
    from auditkit.audit.offline_proof import Proved
    from auditkit.audit.signed_log import Opened, Rule
    from auditkit.cli.progress import Board
    from auditkit.replay.run import Run

app = typer.Typer(help="Show a run's signed log; prove a record offline, check such a proof.", rich_markup_mode=None)

Number = Annotated[int, typer.Argument(parser=options.number, metavar="N", help="The step, counted from 0.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="The file to make (default: step-N.tlog-proof); none is overwritten."),
]
AtSegment = Annotated[
    bool, typer.Option("--segment", help="Prove the record of the segment that begins with this step, not the step's.")
]
Proof = Annotated[Path, typer.Argument(metavar="FILE", help="The proof, as `auditkit log prove` makes it.")]


@app.command("show", cls=ComputingCommand, short_help="Show the checkpoint and who signed it.")
def show(
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    publisher: options.Publisher = None,
    policy: options.LogPolicy = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Show the checkpoint of a run's signed log and who signed it.

    Checked before: the signature, the history of the log on this machine, and that the manifest's records are in it.
    """
    from auditkit.cli.progress import Board

    with Board() as board:
        opened = _open_run(run, artifacts, offline, cache_dir, board)
        with opened:
            log = _open_log(opened, _rule(publisher, policy))
            facts = _facts(opened, log)
    if json:
        return Outcome(Verdict.MATCH, to_json({"verdict": "MATCH", "code": 0, **facts}))
    return Outcome(Verdict.MATCH, "\n".join(_shown(facts)))


@app.command("prove", cls=ComputingCommand, short_help="Write a proof of a step's record for use offline.")
def prove(
    step: Number,
    segment: AtSegment = False,
    out: Out = None,
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    publisher: options.Publisher = None,
    policy: options.LogPolicy = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Write one file that shows to anybody who knows the publisher's key what the record of a step says.

    With --segment, of the segment that begins with the step: which recipe and data, from which place in them.

    It holds the record, its audit path and the signed checkpoint; `auditkit log check` needs nothing else.
    """
    from auditkit.audit.offline_proof import prove as make
    from auditkit.cli.progress import Board
    from auditkit.formats.tlog_proof import SUFFIX
    from auditkit.replay.selection import select
    from auditkit.trust.key_files import write_new

    with Board() as board:
        opened = _open_run(run, artifacts, offline, cache_dir, board)
        with opened:
            select(step=step).resolve(opened.size)
            log = _open_log(opened, _rule(publisher, policy))
            proof = make(log, step, segment=segment)
    data, kind = proof.encode(), "segment" if segment else "step"
    place = out if out is not None else Path(f"{kind}-{step}{SUFFIX}")
    write_new(place, data, mode=0o644)
    if json:
        made = {"format": "auditkit/log-prove/v1", "path": str(place), kind: step, "bytes": len(data)}
        return Outcome(Verdict.MATCH, to_json({"verdict": "MATCH", "code": 0, **made, "key": log.reader.key.text}))
    named = f"segment from step {step} on" if segment else f"step   {step}"
    lines = [
        f"{named}, entry {proof.index} of {log.checkpoint.size}",
        f"file   {printable(str(place))}, {len(data)} bytes",
        f"check  auditkit log check {printable(str(place))} --publisher {printable(log.reader.key.text)}",
    ]
    return Outcome(Verdict.MATCH, "\n".join(lines))


@app.command("check", cls=ComputingCommand, short_help="Check such a proof, without a network.")
def check(
    file: Proof,
    publisher: options.Publisher = None,
    policy: options.LogPolicy = None,
    json: options.Json = False,
) -> Outcome:
    """Check a proof file offline: signature, the witnesses that a policy asks for, and that the record is in the log.

    The key comes from --publisher or --policy; the step itself is not replayed.
    """
    from auditkit.audit.offline_proof import check as check_proof
    from auditkit.formats.limits import LIMITS
    from auditkit.store.files import read_small

    rule = _rule(publisher, policy)
    data = read_small(file, LIMITS.log_proof_bytes)
    if data is None:
        raise Unavailable(f"there is no {file}")
    found = check_proof(data, rule, what=str(file))
    if json:
        return Outcome(Verdict.MATCH, to_json({"verdict": "MATCH", "code": 0, **_proved(found)}))
    return Outcome(Verdict.MATCH, "\n".join(_proved_lines(found)))


def _rule(publisher: str | None, policy: Path | None) -> Rule:
    from auditkit.audit.verify import rule
    from auditkit.trust.policy import load_policy

    return rule(publisher, load_policy(policy) if policy is not None else None)


def _open_run(run: str | None, artifacts: str | None, offline: bool, cache_dir: Path | None, board: Board) -> Run:
    from auditkit.replay.run import open_run

    return open_run(run, artifacts=artifacts, cache_dir=cache_dir, offline=offline, progress=board.handle())


def _open_log(run: Run, rule: Rule) -> Opened:
    from auditkit.audit.signed_log import SignedLog

    return SignedLog(rule).open(run)


def _facts(run: Run, log: Opened) -> dict[str, object]:
    """What is shown of a log, as JSON values."""
    from auditkit.trust.witness import shown_time

    key, checkpoint = log.reader.key, log.checkpoint
    times = {(c.key.name, c.key.hash): c.time for c in log.cosignatures}
    signatures = []
    for line in log.note.signatures:
        time = times.get((line.name, line.key_hash))
        who = "publisher" if line.is_of(key) else "witness" if time is not None else "unknown"
        signed: dict[str, object] = {"name": line.name, "key_hash": line.key_hash.hex(), "who": who}
        signatures.append({**signed, "time": shown_time(time)} if time is not None else signed)
    return {
        "format": "auditkit/log-show/v1",
        "run": run.name,
        "run_id": run.run_id,
        "origin": checkpoint.origin,
        "key": key.text,
        "size": checkpoint.size,
        "root": checkpoint.root.hex(),
        "manifest_size": run.timeline.entries,
        "history": log.history,
        "signatures": signatures,
        "checkpoint": log.note.encode().decode("utf-8"),
    }


_WHO = {
    "publisher": "the publisher: verified",
    "witness": "a witness of the policy: verified",
    "unknown": "not a key that was asked for: not verified",
}


def _shown(facts: dict[str, object]) -> Iterator[str]:
    size, of = facts["size"], facts["manifest_size"]
    yield f"run         {printable(str(facts['run']))}"
    yield f"origin      {printable(str(facts['origin']))}"
    yield f"key         {printable(str(facts['key']))}"
    yield f"size        {size}"
    yield f"root        {facts['root']}"
    yield f"manifest    its {of} records are {'the log' if size == of else 'the begin of the log'}"
    yield f"history     {facts['history']}"
    signatures = facts["signatures"]
    assert isinstance(signatures, list)
    for line in signatures:
        at = f", {line['time']}" if "time" in line else ""
        yield f"signed by   {printable(line['name'])} {line['key_hash']}, {_WHO[line['who']]}{at}"
    yield "not checked: whose key it is, whether others see the same log, any training step (`auditkit verify` does)"


def _proved(found: Proved) -> dict[str, object]:
    from auditkit.formats.segment import SegmentRecord

    record, checkpoint = found.record, found.checkpoint
    changed = {}
    if isinstance(record, SegmentRecord):
        changed = {"segment": {"recipe": record.recipe, "data": record.data, "sequence": record.sequence}}
    return {
        "format": "auditkit/log-check/v1",
        "step": record.step,
        "entry": found.index,
        **changed,
        "run_id": record.run,
        "record": record.digest(),
        "state_before": record.state_before,
        "state_after": record.state_after,
        "origin": checkpoint.origin,
        "size": checkpoint.size,
        "root": checkpoint.root.hex(),
        "witnesses": [{"key": c.key.text, "time": c.time} for c in found.cosignatures],
        "content": record.encode().decode("ascii"),
    }


def _proved_lines(found: Proved) -> Iterator[str]:
    from auditkit.formats.segment import SegmentRecord

    record, checkpoint = found.record, found.checkpoint
    behind = f", entry {found.index}: {found.segments} of the entries before are segments'" if found.segments else ""
    if isinstance(record, SegmentRecord):
        yield f"segment       from step {record.step} on{behind}"
        yield f"recipe        {record.recipe}"
        yield f"data          {record.data}, from sequence {record.sequence} on"
    else:
        yield f"step          {record.step}{behind}"
    yield f"run id        {record.run}"
    yield f"record        {record.digest()}"
    yield f"state before  {record.state_before}"
    yield f"state after   {record.state_after}"
    yield f"log           {printable(checkpoint.origin)}, {checkpoint.describe()}"
    for cosignature in found.cosignatures:
        yield f"cosigned by   {printable(cosignature.describe())}"
    yield "MATCH: the publisher's key signed a log that holds this record"
    yield "not checked: the training step (`auditkit verify` does), and whether the log is the one that others see"

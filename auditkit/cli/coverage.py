"""`auditkit coverage`: how much of a run has been verified, and by whom."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.outcome import Outcome, page_written, to_json
from auditkit.errors import AuditkitError, BadArtifact, UsageError

if TYPE_CHECKING:
    from auditkit.audit.coverage_report import CoverageReport
    from auditkit.audit.sources import Sources
    from auditkit.formats import policy as rules
    from auditkit.formats.note import NoteKey
    from auditkit.replay.run import Run
    from auditkit.trust.policy import Trust

Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH|URL",
        help="Attestations: files (*.json, *.jsonl), folders of them, attestation logs. Public keys: *.pem.",
    ),
]
Policy = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="Whose word counts, and how many it takes (policy.toml)."),
]
Keys = Annotated[list[Path] | None, typer.Option("--key", metavar="PEM", help="An auditor's key file, repeatable.")]
LogKey = Annotated[
    str | None, typer.Option("--log-key", metavar="VKEY", help="Who signs the attestation logs (name+hash+key).")
]
Html = Annotated[
    str | None,
    typer.Option(
        "--html", metavar="FILE", help="Write a page with a map of the run: a new file, or over an older such page."
    ),
]


def coverage(
    places: Places = None,
    policy: Policy = None,
    key: Keys = None,
    log_key: LogKey = None,
    html: Html = None,
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Say which steps of a run auditors have verified: mismatches, disputes, gaps, counts, chances of escape.

    Every attestation is verified (signature, run, step, record) once and remembered. Without --policy each key given
    counts, one is enough, automation does not count. Nothing is replayed.
    """
    if not places:
        raise UsageError("no attestations are named", hint="auditkit coverage FOLDER, or the URL of an attestation log")
    from auditkit.audit.signed_log import Rule, SignedLog
    from auditkit.audit.sources import Sources
    from auditkit.cli.coverage_text import coverage_text
    from auditkit.cli.progress import Board
    from auditkit.replay.run import open_run
    from auditkit.replay.verify import check_chain, check_log
    from auditkit.trust.page_file import PageFile

    read = [*map(Path, places), *(key or []), *([policy] if policy else [])]
    target = None if html is None else PageFile(html, read)
    with ExitStack() as stack:
        progress = stack.enter_context(Board()).handle()
        opened = stack.enter_context(
            open_run(run, artifacts=artifacts, cache_dir=cache_dir, offline=offline, progress=progress)
        )
        found, words = _policy(policy)
        check_chain(opened)
        check_log(opened)
        log = SignedLog(Rule.of(found) if found else None, whole=True).check(opened, None)
        sources = stack.enter_context(Sources.of(places, _vkey(log_key), offline=offline, progress=progress))
        trust, names = _trust(found, key or [], sources, opened)
        memory = _memory(cache_dir, opened.run_id)
        report = sources.report(opened, trust, names, policy=words, log=log, memory=memory)
    there, verdict = page_written(target, lambda: _page(report), report.verdict)
    value = {**report.to_dict(), "code": verdict.code}
    return Outcome(verdict, to_json(value) if json else coverage_text(report, html if there and html else ""))


def _vkey(text: str | None) -> NoteKey | None:
    from auditkit.formats.note import ED25519, parse_key

    try:
        return None if text is None else parse_key(text, "--log-key", ED25519)
    except BadArtifact as error:
        raise UsageError(error.message, hint="the log's owner publishes it: NAME+HASH+BASE64") from error


def _policy(path: Path | None) -> tuple[rules.Policy | None, str]:
    """The policy of a file, and the rule in words, with the digest of the very bytes that it was read from."""
    from auditkit.formats import policy as rules
    from auditkit.formats.digest import content_digest
    from auditkit.formats.limits import LIMITS
    from auditkit.trust import key_files

    if path is None:
        return None, "none given: each valid key counts, one key is enough, automation does not count"
    data = key_files.read(path, LIMITS.policy_bytes)
    try:
        policy = rules.Policy.parse(data)
    except AuditkitError as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from error
    keys = "1 key" if policy.threshold == 1 else f"{policy.threshold} different keys"
    families = "" if policy.families == 1 else f" on {policy.families} hardware families"
    automation = "counts" if policy.automation else "does not count"
    said = f"{keys}{families} of {len(policy.auditors)} auditors; automation {automation}"
    return policy, f"{said} ({path.name}, BLAKE3 {content_digest(data)})"


def _trust(policy: rules.Policy | None, keys: list[Path], sources: Sources, run: Run) -> tuple[Trust, dict[str, str]]:
    """Whose word counts, and the auditors' names by key id."""
    from auditkit.trust.keys import PublicKey, load_public_half
    from auditkit.trust.policy import Trust

    known = sources.keys | {load_public_half(path): path.stem for path in keys}
    names = {key.keyid: name for key, name in known.items()}
    publisher = PublicKey(run.manifest.publisher.public) if run.manifest.publisher else None
    if policy is None:
        return Trust.of(known, publisher), names
    trust = Trust(policy, publisher, others=known)
    return trust, names | trust.names


def _memory(cache_dir: Path | None, run_id: str) -> Path:
    from auditkit.store import STORE_LIMITS
    from auditkit.store.cache import Cache

    return Cache.at(cache_dir, STORE_LIMITS).folder / "attestations" / run_id


def _page(report: CoverageReport) -> bytes:
    from auditkit.trust.page import page
    from auditkit.trust.page_parts import About
    from auditkit.version import DISTRIBUTION, version

    about = About(
        run=report.run,
        run_id=report.run_id,
        manifest=report.manifest,
        policy=report.policy,
        made=report.made,
        program=f"{DISTRIBUTION} {version()}",
        names=report.names,
        refused=report.collection.reasons,
        signed_log=report.signed_log,
        not_checked=report.not_checked,
        warnings=report.warnings,
    )
    return page(report.coverage, about)

"""`auditkit coverage`: how much of a run has been verified, and by whom."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.outcome import Outcome, to_json
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
Keys = Annotated[list[Path] | None, typer.Option("--key", metavar="PEM", help="An auditor's public key, repeatable.")]
LogKey = Annotated[
    str | None, typer.Option("--log-key", metavar="VKEY", help="Who signs the attestation logs (name+hash+key).")
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a map of the run, in one file.")
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
    from auditkit.audit.sources import Sources
    from auditkit.cli.coverage_text import coverage_text
    from auditkit.cli.progress import Board
    from auditkit.replay.run import open_run
    from auditkit.replay.verify import check_chain, check_log

    with ExitStack() as stack:
        progress = stack.enter_context(Board()).handle()
        opened = stack.enter_context(
            open_run(run, artifacts=artifacts, cache_dir=cache_dir, offline=offline, progress=progress)
        )
        check_chain(opened)
        check_log(opened)
        sources = stack.enter_context(Sources.of(places, _vkey(log_key), offline=offline, progress=progress))
        trust, names, words = _trust(policy, key or [], sources, opened)
        report = sources.report(opened, trust, names, words, memory=_memory(cache_dir, opened.run_id))
    if html is not None:
        _write_page(html, report)
    return Outcome(report.verdict, to_json(report.to_dict()) if json else coverage_text(report, str(html or "")))


def _vkey(text: str | None) -> NoteKey | None:
    from auditkit.formats.note import NoteKey

    try:
        return None if text is None else NoteKey.parse(text, "--log-key")
    except BadArtifact as error:
        raise UsageError(error.message, hint="the log's owner publishes it: name+hash+key") from error


def _trust(policy: Path | None, keys: list[Path], sources: Sources, run: Run) -> tuple[Trust, dict[str, str], str]:
    """Whose word counts, the auditors' names, and the rule in words."""
    from auditkit.trust.keys import PublicKey, load_public
    from auditkit.trust.policy import Trust

    given = {load_public(path): path.stem for path in keys}
    known = sources.keys | given
    names = {key.keyid: name for key, name in known.items()}
    publisher = PublicKey(run.manifest.publisher.public) if run.manifest.publisher else None
    if policy is None:
        trust = Trust.of(known, publisher)
        return trust, names, "none given: each valid key counts, one key is enough, automation does not count"
    found, digest = _policy(policy)
    trust = Trust(found, publisher, others=known)
    return trust, names | trust.names, f"{_rule(trust)} ({policy.name}, BLAKE3 {digest})"


def _policy(path: Path) -> tuple[rules.Policy, str]:
    """The policy of a file, and the digest of the very bytes that it was read from."""
    from auditkit.formats import policy as rules
    from auditkit.formats.digest import content_digest
    from auditkit.formats.limits import LIMITS
    from auditkit.trust import key_files

    data = key_files.read(path, LIMITS.policy_bytes)
    try:
        return rules.Policy.parse(data), content_digest(data)
    except AuditkitError as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from error


def _rule(trust: Trust) -> str:
    keys = "1 key" if trust.threshold == 1 else f"{trust.threshold} different keys"
    families = "" if trust.families == 1 else f" on {trust.families} hardware families"
    automation = "counts" if trust.policy.automation else "does not count"
    return f"{keys}{families} of {len(trust.policy.auditors)} auditors; automation {automation}"


def _memory(cache_dir: Path | None, run_id: str) -> Path:
    from auditkit.store import STORE_LIMITS
    from auditkit.store.cache import Cache

    return Cache.at(cache_dir, STORE_LIMITS).folder / "attestations" / run_id


def _write_page(path: Path, report: CoverageReport) -> None:
    from auditkit.trust import disk
    from auditkit.trust.page import page
    from auditkit.trust.page_parts import About
    from auditkit.version import DISTRIBUTION, version

    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", hint="make it first")
    about = About(
        run=report.run,
        run_id=report.run_id,
        manifest=report.manifest,
        policy=report.policy,
        made=report.made,
        program=f"{DISTRIBUTION} {version()}",
        names=report.names,
        refused=report.collection.reasons,
    )
    disk.write(path, page(report.coverage, about))

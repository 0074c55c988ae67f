"""What auditors have said of a run so far, under one policy: what `auditkit next` and the nightly job go by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from auditkit.audit.signed_log import Rule, SignedLog
from auditkit.audit.sources import Sources
from auditkit.formats.digest import Digest, content_digest
from auditkit.formats.limits import LIMITS
from auditkit.formats.note import NoteKey
from auditkit.replay.verify import check_chain, check_log
from auditkit.store import STORE_LIMITS, Clock, Progress
from auditkit.store.cache import Cache
from auditkit.trust import key_files
from auditkit.trust.coverage import Coverage
from auditkit.trust.keys import PublicKey
from auditkit.trust.policy import Trust, load_policy

if TYPE_CHECKING:
    from auditkit.replay.run import Run


def what_was_said(
    run: Run,
    places: Sequence[str],
    policy: Path | None,
    log_key: str | None,
    *,
    own: PublicKey | None = None,
    cache_dir: Path | None,
    data_dir: Path | None = None,
    offline: bool,
    progress: Progress,
    clock: Clock | None = None,
) -> tuple[Coverage | None, Digest]:
    """The coverage of a run by the attestations at some places, and the content digest of the policy's file.

    No places: None. No policy: each key found there counts, one is enough, automation does not count, and the digest is
    "". `own` is a key whose attestations are read even if the policy does not list it: a key is not asked twice. Each
    attestation is verified once and remembered in the cache. `data_dir` remembers the checkpoints of the run's signed
    log, by default the user's data folder. The errors of the run's checks 1 to 3, of the policy, and of `Sources`.
    """
    digest = content_digest(key_files.read(policy, LIMITS.policy_bytes)) if policy else ""
    read = load_policy(policy) if policy else None
    if not places:
        return None, digest
    check_chain(run)
    check_log(run)
    log = SignedLog(Rule.of(read) if read else None, data=data_dir, whole=True).check(run, None)
    publisher = PublicKey(run.manifest.publisher.public) if run.manifest.publisher else None
    signer = NoteKey.parse(log_key, "--log-key") if log_key else None
    with Sources.of(places, signer, offline=offline, progress=progress, clock=clock) as sources:
        known = [*sources.keys, *([own] if own else [])]
        trust = Trust(read, publisher, others=known) if read else Trust.of(known, publisher)
        memory = Cache.at(cache_dir, STORE_LIMITS).folder / "attestations" / run.run_id
        found = sources.report(run, trust, {}, policy="", log=log, memory=memory, clock=clock)
        return found.coverage, digest

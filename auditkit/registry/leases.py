"""Leases: which steps an auditor takes next, so that auditors do not repeat each other.

A lease is advice. It counts as a match to come, so that others are given other steps first; it runs out, and an
attestation of a step is taken whoever holds a lease on it. Only keys that count under the policy get leases; others are
told steps, and hold nobody back: a publisher with many keys could else keep everybody off the very steps that were
tampered with.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.errors import Untrusted, UsageError
from auditkit.formats.dsse import Envelope
from auditkit.formats.lease import PAYLOAD_TYPE, Lease, LeaseRequest, Leases
from auditkit.registry.database import Database, add_key
from auditkit.registry.ledger import Ledger
from auditkit.registry.limits import RegistryLimits
from auditkit.registry.refusals import TooMany
from auditkit.registry.runs import KnownRun, Runs
from auditkit.trust.assignment import NEVER, SETTLED, Levels, Ranks, assign, needs
from auditkit.trust.coverage import Coverage
from auditkit.trust.envelope import signer
from auditkit.trust.keys import PublicKey
from auditkit.verdict import Verdict

DECIDED = (Verdict.MATCH.code, Verdict.MISMATCH.code)

_OTHERS = (
    "SELECT l.step, k.keyid FROM leases l JOIN keys k ON k.id = l.key WHERE l.run = ? AND l.key <> ? AND l.expires > ?"
)


@dataclass(frozen=True)
class _Held:
    """What the database says when a request comes: the key's number, when each of its leases runs out, the steps that
    it has attested or leased, and which key has a lease on which step of the run.
    """

    number: int
    expires: list[int]
    own: list[int]
    others: list[tuple[int, str]]


class Desk:
    """Hands out leases; `audiences` are the addresses of this registry, `beacon` gives a public random value."""

    def __init__(
        self,
        database: Database,
        runs: Runs,
        ledger: Ledger,
        limits: RegistryLimits,
        *,
        audiences: Collection[str],
        beacon: Callable[[], bytes],
        wall: Callable[[], float],
    ) -> None:
        self._database, self._runs, self._ledger, self._limits = database, runs, ledger, limits
        self._audiences, self._beacon, self._wall = frozenset(audiences), beacon, wall
        self._lock = threading.Lock()  # two requests at the same time do not choose the same steps

    def grant(self, data: bytes, keys: Mapping[str, PublicKey]) -> Leases:
        """The leases for a signed request.

        Untrusted: not signed by one of `keys`, for another registry or time, or used before; UsageError: for a run that
        is not served or for too many steps; TooMany: the key has as many as it may have; BadArtifact, Unsupported.
        """
        envelope = Envelope.parse(data)
        key = signer(envelope, keys, payload_type=PAYLOAD_TYPE)
        request = LeaseRequest.parse(envelope.payload)
        now = int(self._wall())
        run = self._checked(request, now)
        if self._ledger.voters(run).why_not(key.keyid, ""):
            return self._suggest(request, key, run, now)
        with self._lock:
            held = self._admit(request, key, run, now)
            room = self._limits.lease_steps_per_key - len(held.expires)
            if room <= 0:
                count = len(held.expires)
                raise TooMany(f"key {key.keyid8} holds {count} leases, and may hold no more", min(held.expires) - now)
            leases = self._choose(run, key, held, min(request.count, room), now)
            self._note(run, held.number, leases)
        return Leases(run.run_id, len(held.expires) + len(leases), leases)

    def _suggest(self, request: LeaseRequest, key: PublicKey, run: KnownRun, now: int) -> Leases:
        """Steps for a key that does not count. Nothing is noted: anybody can make such keys, as many as wanted."""
        with self._database.engine.reading() as session:
            others = session.run(_OTHERS, (run.number, -1, now))
        held = _Held(-1, [], [], [(int(step), bytes(keyid).hex()) for step, keyid in others])
        return Leases(run.run_id, 0, self._choose(run, key, held, request.count, now))

    def _choose(self, run: KnownRun, key: PublicKey, held: _Held, count: int, now: int) -> tuple[Lease, ...]:
        """The neediest steps for a key, in the order of its ranks."""
        chosen = assign(Ranks(run.run_id, key.keyid, self._beacon()), run.size, count, self._levels(run, key, held))
        return tuple(Lease(step, now + self._limits.lease_seconds) for step in chosen.tolist())

    def _checked(self, request: LeaseRequest, now: int) -> KnownRun:
        if request.audience not in self._audiences:
            raise Untrusted(
                f"a lease request for {request.audience}, and this registry is {' or '.join(sorted(self._audiences))}",
                hint="give the registry's own address to --registry",
            )
        if abs(request.time - now) > self._limits.clock_seconds:
            raise Untrusted(
                f"a lease request of another time: {abs(request.time - now)} s from now, "
                f"at most {self._limits.clock_seconds} are allowed",
                hint="is your clock right? a request cannot be kept for later",
            )
        if request.count > self._limits.lease_steps:
            raise UsageError(f"{request.count} steps in one request, at most {self._limits.lease_steps} are allowed")
        run = self._runs.get(request.run_id)
        if run is None:
            raise UsageError(f"run {request.run_id} is not served here", hint="GET /v1/runs lists the runs")
        return run

    def _admit(self, request: LeaseRequest, key: PublicKey, run: KnownRun, now: int) -> _Held:
        """Use the nonce up, and look what there is. Untrusted: it was used before."""
        with self._database.engine.writing() as session:
            number = add_key(session, bytes.fromhex(key.keyid), key.raw)
            session.run("DELETE FROM lease_requests WHERE expires < ?", (now,))
            session.run("DELETE FROM leases WHERE expires <= ?", (now,))
            nonce = bytes.fromhex(request.nonce)
            if session.run("SELECT 1 FROM lease_requests WHERE key = ? AND nonce = ?", (number, nonce)):
                raise Untrusted("this lease request was used before", hint="sign a new one for each request")
            # As long as the time in the request can be right, somebody may send it again.
            until = max(now, request.time) + self._limits.clock_seconds
            session.run("INSERT INTO lease_requests VALUES (?, ?, ?)", (number, nonce, until))
            mine = session.run("SELECT run, step, expires FROM leases WHERE key = ?", (number,))
            others = session.run(_OTHERS, (run.number, number, now))
            said = session.run(
                "SELECT DISTINCT step FROM attestations WHERE key = ? AND run = ? AND verdict IN (?, ?)",
                (number, run.number, *DECIDED),
            )
        own = [step for (step,) in said] + [step for at, step, _ in mine if at == run.number]
        leased = [(int(step), bytes(keyid).hex()) for step, keyid in others]
        return _Held(number, [int(expires) for *_, expires in mine], own, leased)

    def _levels(self, run: KnownRun, key: PublicKey, held: _Held) -> Levels:
        voters = self._ledger.voters(run)
        counting = {keyid: not voters.why_not(keyid, "") for keyid in {keyid for _, keyid in held.others}}
        leased = Counter(step for step, keyid in held.others if counting[keyid])
        levels = with_leases(self._ledger.coverage(run).coverage, key.keyid, leased)
        levels[[step for step in held.own if step < run.size]] = NEVER
        return levels

    def _note(self, run: KnownRun, number: int, leases: Sequence[Lease]) -> None:
        with self._database.engine.writing() as session:
            session.run_many(
                # another process may have given the same key the same step a moment ago
                "INSERT INTO leases VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                [(run.number, lease.step, number, lease.expires) for lease in leases],
            )


def with_leases(coverage: Coverage, keyid: str, leased: Mapping[int, int]) -> Levels:
    """The need of every step for a key, (size,) u8, if each lease on a step (`leased`: how many) becomes a match.

    A step that has enough of both comes after all that have not, and before those that are settled.
    """
    levels = needs(coverage, keyid)
    steps = np.array([step for step in leased if step < coverage.size], np.int64)
    counts = np.array([leased[step] for step in steps.tolist()], np.int64)
    unsettled = levels[steps] < SETTLED
    steps, counts = steps[unsettled], counts[unsettled]
    raised = np.minimum(levels[steps] + counts, SETTLED - 1)
    raised[coverage.matches[steps] + counts >= coverage.threshold] = SETTLED - 1
    levels[steps] = raised
    return levels

"""The latest round of drand, a network that publishes a random value every few seconds (https://docs.drand.love).

The round's threshold signature is not verified here: that takes pairings on BLS12-381. It is kept beside the
randomness, so that anybody can verify it later; what is checked is that the randomness is the signature's SHA-256, as
the network defines it, and that the round is one of this hour, so that a relay cannot hand out an old one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from auditkit.errors import AuditkitError, BadArtifact, Unavailable
from auditkit.formats import canonical
from auditkit.formats.fields import Fields
from auditkit.store import STORE_LIMITS, Clock, Progress, Remote
from auditkit.store.http import Http
from auditkit.store.transfer import Transfer
from auditkit.trust.beacon import Beacon, Origin

DOCUMENT_BYTES = 16 * 1024
FRESH_SECONDS = 3600  # how far a round may lie from this machine's clock
# A relay that does not answer soon is passed over: there are others, and the date in the end.
LIMITS = replace(STORE_LIMITS, connect_seconds=10.0, answer_seconds=20.0, tries=3, silent_tries=2)
_HEX = re.compile(r"(?:[0-9a-f]{2})+")


@dataclass(frozen=True)
class Chain:
    """A network: its name and hash, when round 1 was (Unix time) and the seconds from round to round."""

    name: str
    hash: str
    genesis: int
    period: int

    def time_of(self, number: int) -> int:
        """When a round is published, Unix time."""
        return self.genesis + (number - 1) * self.period


QUICKNET = Chain("quicknet", "52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971", 1692803367, 3)
RELAYS = ("https://api.drand.sh/", "https://api2.drand.sh/", "https://api3.drand.sh/", "https://drand.cloudflare.com/")


@dataclass(frozen=True)
class Round:
    """One round as a relay gave it; `signature` is not verified."""

    chain: Chain
    number: int
    randomness: bytes  # 32
    signature: bytes
    relay: str

    @property
    def beacon(self) -> Beacon:
        """The round's randomness as a beacon."""
        return Beacon(self.randomness, Origin.DRAND, f"{self.chain.name} round {self.number}")

    def to_dict(self) -> dict[str, object]:
        """What somebody needs to verify the round."""
        return {
            "chain": self.chain.hash,
            "name": self.chain.name,
            "round": self.number,
            "randomness": self.randomness.hex(),
            "signature": self.signature.hex(),
            "signature_verified": False,
            "relay": self.relay,
        }


def parse_round(data: bytes, chain: Chain, relay: str) -> Round:
    """A relay's answer to /CHAIN/public/latest. BadArtifact: malformed, or the randomness is not the signature's."""
    found = Fields(canonical.loads_relaxed(data, what="drand round", limit=DOCUMENT_BYTES), "drand round")
    number = found.integer("round", 1)
    randomness, signature = (_bytes(found, key) for key in ("randomness", "signature"))
    if hashlib.sha256(signature).digest() != randomness:
        raise BadArtifact("drand round: the randomness is not the SHA-256 of the signature")
    return Round(chain, number, randomness, signature, relay)


def latest(progress: Progress, clock: Clock, *, relays: Sequence[str] = RELAYS, chain: Chain = QUICKNET) -> Round:
    """The latest round, from the first relay that gives one. Unavailable: none does, and why."""
    http = Http(LIMITS)
    failures = []
    try:
        transfer = Transfer(http, LIMITS, progress, clock)
        for relay in relays:
            try:
                data = transfer.document(Remote(relay), f"{chain.hash}/public/latest", DOCUMENT_BYTES)
                found = parse_round(data, chain, relay)
                _check_fresh(found, clock.wall())
                return found
            except AuditkitError as error:
                failures.append(error.message)
                progress.note(f"{error.message}; trying the next relay of drand")
    finally:
        http.close()
    raise Unavailable(f"no round of drand: {'; '.join(failures) or 'no relay is named'}")


def _bytes(found: Fields, key: str) -> bytes:
    text = found.text(key)
    if not _HEX.fullmatch(text):
        raise BadArtifact(f"{found.name(key)}: not hexadecimal digits")
    return bytes.fromhex(text)


def _check_fresh(found: Round, now: float) -> None:
    away = now - found.chain.time_of(found.number)
    if abs(away) > FRESH_SECONDS:
        raise BadArtifact(
            f"drand round {found.number} lies {abs(away):.0f} s in the {'past' if away > 0 else 'future'}",
            hint="is the clock of this machine right?",
        )
